"""A CPU sums weight gradients of convolutions over parts of an image whose panels fit in the first level."""

from __future__ import annotations

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
    assert "0: +3136" not in text and "dot." in text, text
    torch.testing.assert_close(
        called(gradient, [x, g], "cpu"), gradient(x, g), rtol=1e-4, atol=1e-3, msg=lambda m: f"{m}, seed {seed}"
    )
