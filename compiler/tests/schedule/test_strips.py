"""A CPU goes down strips of an image whose places along a row take arithmetic, which is done once for a strip."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiler import frontend, pipeline
from compiler.ir import tile_text
from compiler.targets import cpu
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed


def corners(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(300, 2 * x.shape[3]), mode="bilinear", align_corners=True)


def half_again(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=1.5)


def doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2)


def masked(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x.flip(3)) + 1


@pytest.mark.parametrize(
    ("function", "shape", "down"),
    [
        (corners, (1, 3, 20, 19), True),
        (corners, (1, 1, 20, 16), True),
        (half_again, (2, 3, 40, 50), True),
        (half_again, (1, 1, 400, 30), True),
        (doubled, (2, 3, 40, 50), False),
        (masked, (2, 3, 40, 50), False),
    ],
)
def test_vectors_go_down_where_places_take_arithmetic(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], down: bool
) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(*shape)
    program = frontend.capture(function, [x]).program
    lines = tile_text.show(pipeline.lower(program, cpu.AVX2, until="tile").stages["tile"]).splitlines()
    at = next(n for n, line in enumerate(lines) if "in vector(" in line)
    assert ("for " in lines[at + 1]) == down, "\n".join(lines)
    torch.testing.assert_close(called(function, [x], "cpu"), function(x), msg=lambda m: f"{m}, seed {seed}")
