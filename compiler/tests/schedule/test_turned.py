"""A CPU reads tensors that lie across what is stored by squares, which are turned in registers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compiler import frontend, pipeline
from compiler.ir import tile_text
from compiler.targets import cpu
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed


def turned(x: Tensor) -> Tensor:
    """The last axis first, in memory, too."""
    return x.movedim(-1, 0).contiguous()


def loops(x: Tensor) -> str:
    """The Tile IR for AVX2."""
    program = frontend.capture(turned, [x]).program
    return tile_text.show(pipeline.lower(program, cpu.AVX2, until="tile").stages["tile"])


@pytest.mark.parametrize(
    ("shape", "dtype", "side"),
    [
        ((64, 48), torch.float32, 8),
        ((8, 8), torch.float32, 8),
        ((41, 37), torch.float32, 8),
        ((41, 37), torch.bfloat16, 16),
        ((40, 37), torch.int64, 4),
        ((3, 9, 11, 23), torch.float32, 8),
        ((5, 40), torch.float32, 0),
        ((40, 3), torch.float32, 0),
        ((40, 37), torch.bool, 0),
    ],
)
def test_squares_of_what_lies_across_are_turned(shape: tuple[int, ...], dtype: torch.dtype, side: int) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = (torch.randn(*shape) * 9).to(dtype)
    text = loops(x)
    assert (f"x_square[0: +{side}, 0: +{side}]" if side else "for") in text and ("square" in text) == (side > 0), text
    torch.testing.assert_close(called(turned, [x], "cpu"), turned(x), rtol=0, atol=0, msg=lambda m: f"{m}, seed {seed}")


def test_operands_that_lie_both_ways_are_read_as_they_lie() -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x, y = torch.randn(70, 45), torch.randn(45, 70)

    def both(x: Tensor, y: Tensor) -> Tensor:
        return y + x.t() * 2

    text = tile_text.show(pipeline.lower(frontend.capture(both, [x, y]).program, cpu.AVX2, until="tile").stages["tile"])
    assert "x_square" in text and "y_square" not in text, text
    torch.testing.assert_close(called(both, [x, y], "cpu"), both(x, y), msg=lambda m: f"{m}, seed {seed}")
