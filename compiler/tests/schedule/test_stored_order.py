"""Rows that are neighbours where a CPU stores them go along vectors, whichever loop of the program they are."""

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

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "relu": lambda x: x.relu(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_channels_that_are_neighbours_are_lanes(name: str) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(2, 19, 12, 14).to(memory_format=torch.channels_last)
    program = frontend.capture(PROGRAMS[name], [x]).program
    text = tile_text.show(pipeline.lower(program, cpu.AVX2, until="tile").stages["tile"])
    assert "vector(" in text and "j" in text.split("vector(")[0].split("for ")[-1], text
    torch.testing.assert_close(called(PROGRAMS[name], [x], "cpu"), PROGRAMS[name](x), msg=lambda m: f"{m}, seed {seed}")


def channels_last(*shape: int) -> Tensor:
    return torch.randn(*shape).to(memory_format=torch.channels_last)


def loops(function: Callable[..., Tensor], inputs: list[Tensor]) -> str:
    """The Tile IR for AVX2."""
    program = frontend.capture(function, inputs).program
    return tile_text.show(pipeline.lower(program, cpu.AVX2, until="tile").stages["tile"])


@pytest.mark.parametrize(("channels", "groups", "width"), [(64, 8, 8), (32, 2, 8), (24, 2, 4), (24, 6, 0), (30, 5, 0)])
def test_sums_over_channels_of_a_group_are_made_in_whole_vectors(channels: int, groups: int, width: int) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = channels_last(2, channels, 9, 11)
    sums = [line for line in loops(lambda x: F.group_norm(x, groups), [x]).splitlines() if ", reduce, width=" in line]
    assert len(sums) == (2 if width else 0) and all(f"width={width}" in line for line in sums), sums
    made, right = called(lambda x: F.group_norm(x, groups), [x], "cpu"), F.group_norm(x, groups)
    torch.testing.assert_close(made, right, msg=lambda m: f"{m}, seed {seed}")


def halved(x: Tensor) -> Tensor:
    """Each pixel twice along both sides, as the decomposition of `interpolate` takes it."""
    down, across = ((torch.arange(2 * n, dtype=torch.float32) * 0.5).to(torch.int64) for n in x.shape[2:])
    out: Tensor = torch.ops.aten._unsafe_index(x, [None, None, down[:, None], across])
    return out.contiguous(memory_format=torch.channels_last)


def test_where_pixels_are_read_is_computed_once_for_all_of_their_channels() -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = channels_last(2, 16, 12, 14)
    around, within = loops(halved, [x]).split("vector(16, width=8, unroll=1)")
    assert around.count("i64(") == 2 and "i64(" not in within
    made, right = called(halved, [x], "cpu"), F.interpolate(x, scale_factor=2)
    torch.testing.assert_close(made, right, msg=lambda m: f"{m}, seed {seed}")


def test_parts_of_long_rows_go_past_the_caches_as_whole_rows_do() -> None:
    def joined(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1)

    for channels, side, marks in ((64, 8, 0), (64, 64, 2), (60, 64, 0)):
        x = torch.empty(32, channels, side, side).to(memory_format=torch.channels_last)
        assert loops(joined, [x, x]).count("past=1") == marks


@pytest.mark.parametrize(
    ("function", "shape"),
    [(lambda x: F.max_pool2d(x, 2), (3, 5, 18, 54)), (lambda x: x.amax(-1), (203, 3)), (lambda x: x.flip(-1), (9, 40))],
    ids=["max_pool2d", "amax", "flip"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_rows_go_along_vectors_where_loops_inside_are_short(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = (torch.randn(*shape) * 9).to(dtype)
    text = loops(function, [x])
    assert "vector(" in text and "reduce, width" not in text, text
    expected = function(x.double()).to(dtype)
    torch.testing.assert_close(
        called(function, [x], "cpu"), expected, rtol=0, atol=0, msg=lambda m: f"{m}, seed {seed}"
    )
