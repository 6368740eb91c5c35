"""What a forward pass saves for the backward one: where its rows begin, and that gradients are those of eager."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.backend.options import CompiledRegion
from compiler.ir.expr import static
from compiler.tests.backend.saved_tensors import buffers, gradients

WORDS = 131


def scores(x: Tensor, w: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy((x @ w).float(), wanted)


def test_rows_of_what_is_saved_are_apart(saved_for_gpu: list[CompiledRegion]) -> None:
    x, w, wanted = torch.randn(8, 16).bfloat16(), torch.randn(16, WORDS).bfloat16(), torch.randint(0, WORDS, (8,))
    compiled = torch.compile(scores, backend="mlcomp", options={"fallback": "error"})
    ours, theirs = gradients(compiled, x, w, wanted), gradients(scores, x, w, wanted)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.float(), b.float(), atol=0.02, rtol=0.02)
    forward, backward = saved_for_gpu
    for found in (forward, backward):
        strides = [tuple(map(static, t.strides)) for t in buffers(found) if len(t.shape) == 2 and t.dtype.bytes == 2]
        assert (136, 1) in strides, strides


def test_what_a_caller_gets_has_its_own_strides(saved_for_gpu: list[CompiledRegion]) -> None:
    def both(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu() * (x @ w)

    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, WORDS, requires_grad=True)
    made = torch.compile(both, backend="mlcomp", options={"fallback": "error"})(x, w)
    assert made.stride() == (WORDS, 1)
    torch.autograd.backward(made.sum())
    assert x.grad is not None
    torch.testing.assert_close(
        x.grad, gradients(lambda a, b: both(a, b).sum(), x.detach(), w.detach())[1], atol=1e-3, rtol=1e-3
    )


def test_rows_that_are_flattened_stay_dense(saved_for_gpu: list[CompiledRegion]) -> None:
    def flat(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).sin()
        return (y.flatten().cumsum(0) * y.flatten()).sum()

    x, w = torch.randn(8, 16), torch.randn(16, WORDS)
    ours, theirs = (gradients(f, x, w) for f in (torch.compile(flat, backend="mlcomp"), flat))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
