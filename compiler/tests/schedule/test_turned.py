"""A CPU reads tensors that lie across what is stored by squares, which are turned in registers."""

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


def turned(x: Tensor) -> Tensor:
    """The last axis first, in memory, too."""
    return x.movedim(-1, 0).contiguous()


def _layer_norm(x: Tensor, dim: int) -> Tensor:
    return F.layer_norm(x, (x.shape[dim],))


def _log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, -1)


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


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "tile"),
    [
        ((64, 48), 0, torch.float32, "x_turned[0: +64, 0: +16], x[0: +64, i0 * 16: +16]"),
        ((37, 41), 0, torch.float32, "x_turned[0: +37, 0: +16], x[0: +37, i0 * 16: +16]"),
        ((100, 75), 0, torch.bfloat16, "x_turned[0: +100, 0: +32], x[0: +100, i0 * 32: +32]"),
        ((3, 40, 7, 9), 1, torch.float32, "x_turned[0: +40, 0: +16], x[i, 0: +40, jk0 * 16: +16]"),
        ((9, 48), 0, torch.float32, ""),
        ((64, 9), 0, torch.float32, ""),
        ((40000, 16), 0, torch.float32, ""),
    ],
)
@pytest.mark.parametrize("norm", [F.softmax, _layer_norm])
def test_rows_across_which_an_operand_lies_are_turned_some_at_a_time(
    shape: tuple[int, ...], axis: int, dtype: torch.dtype, tile: str, norm: Callable[[Tensor, int], Tensor]
) -> None:
    def rows(x: Tensor) -> Tensor:
        return norm(x.movedim(axis, -1), -1).contiguous()

    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(*shape).to(dtype)
    text = tile_text.show(pipeline.lower(frontend.capture(rows, [x]).program, cpu.AVX2, until="tile").stages["tile"])
    assert tile in text and ("turned" in text) == bool(tile), text
    torch.testing.assert_close(called(rows, [x], "cpu"), rows(x), msg=lambda m: f"{m}, seed {seed}")


def test_rows_of_a_tensor_with_strides_are_turned_as_those_of_a_view() -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(90, 70).t()
    text = tile_text.show(
        pipeline.lower(frontend.capture(_log_softmax, [x]).program, cpu.AVX2, until="tile").stages["tile"]
    )
    assert "x_turned" in text, text
    torch.testing.assert_close(called(_log_softmax, [x], "cpu"), _log_softmax(x), msg=lambda m: f"{m}, seed {seed}")
