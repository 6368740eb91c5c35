"""A CPU sums weight gradients of convolutions over parts of an image that fit in its caches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compiler import frontend, pipeline
from compiler.ir import tile_text
from compiler.targets import cpu
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed


def gradient(x: Tensor, g: Tensor) -> Tensor:
    w, one, mask = x.new_empty(24, 24, 3, 3), [1, 1], [False, True, False]
    found: Tensor = torch.ops.aten.convolution_backward(g, x, w, None, one, one, one, False, [0, 0], 1, mask)[1]
    return found


def test_large_images_are_summed_by_several_of_their_rows() -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x, g = torch.randn(2, 24, 56, 56), torch.randn(2, 24, 56, 56)
    lowered = pipeline.lower(frontend.capture(gradient, [x, g]).program, cpu.AVX2, until="tile")
    text = tile_text.show(lowered.stages["tile"])
    assert "mma(" in text and "0: +3136" not in text, text
    torch.testing.assert_close(
        called(gradient, [x, g], "cpu"), gradient(x, g), rtol=1e-4, atol=1e-3, msg=lambda m: f"{m}, seed {seed}"
    )


def weights(x: Tensor, g: Tensor) -> Tensor:
    w, stride, one = x.new_empty(g.shape[1], x.shape[1], 3, 3), [2, 2], [1, 1]
    mask = [False, True, False]
    found: Tensor = torch.ops.aten.convolution_backward(g, x, w, None, stride, one, one, False, [0, 0], 1, mask)[1]
    return found


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("channels", [48, 40])
def test_windows_are_rows_and_the_result_is_turned(images: int, channels: int) -> None:
    """Windows of two pixels' distance are gathered once, as rows; the channels of the other image are turned."""
    seed = fresh_seed()
    torch.manual_seed(seed)
    x, g = torch.randn(images, 20, 28, 30), torch.randn(images, channels, 14, 15)
    lowered = pipeline.lower(frontend.capture(weights, [x, g]).program, cpu.AVX512, until="tile")
    text = tile_text.show(lowered.stages["tile"])
    assert not lowered.fallbacks and "getitem_1_turned = local" in text, text
    torch.testing.assert_close(
        called(weights, [x, g], "cpu"), weights(x, g), rtol=1e-4, atol=1e-3, msg=lambda m: f"{m}, seed {seed}"
    )


def test_what_a_convolution_reads_of_few_channels_is_not_rows() -> None:
    """Rows of three elements of a window are not worth what turning the result saves."""
    x, w = torch.randn(8, 64, 7, 7), torch.randn(64, 64, 3, 3)
    program = frontend.capture(lambda x, w: torch.nn.functional.conv2d(x, w, padding=1), [x, w]).program
    text = tile_text.show(pipeline.lower(program, cpu.AVX512, until="tile").stages["tile"])
    assert "turned" not in text, text
