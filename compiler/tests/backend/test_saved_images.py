"""What a forward pass of images saves for the backward one, and that gradients are those of eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.backend.options import CompiledRegion
from compiler.ir.expr import static
from compiler.tests.backend.saved_tensors import buffers, gradients

CHANNELS = 8


def layouts(program: CompiledRegion) -> dict[str, set[tuple[int, ...]]]:
    """The axes of a program's images, from the outermost in memory to the innermost, by dtype."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for t in buffers(program):
        if len(t.shape) == 4 and all(static(n) > 1 for n in t.shape):
            order = tuple(sorted(range(4), key=lambda d: -static(t.strides[d])))
            found.setdefault(t.dtype.name, set()).add(order)
    return found


def check_gradients(f: object, *inputs: Tensor) -> None:
    compiled = torch.compile(f, backend="mlcomp", options={"fallback": "error"})  # type: ignore[call-overload]
    for ours, theirs in zip(gradients(compiled, *inputs), gradients(f, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = F.conv2d(x, w, padding=1)
    y = F.max_pool2d(F.batch_norm(y, None, None, training=True).relu(), 3, 2, 1)
    return F.conv2d(y, v).sigmoid().sum()


def test_images_are_saved_with_channels_innermost(saved_for_gpu: list[CompiledRegion]) -> None:
    check_gradients(block, torch.randn(2, CHANNELS, 10, 12), torch.randn(16, CHANNELS, 3, 3), torch.randn(24, 16, 1, 1))
    forward, backward = saved_for_gpu
    last = (0, 2, 3, 1)
    assert layouts(forward)["f32"] == layouts(backward)["f32"] == {(0, 1, 2, 3), last}  # weights are inputs
    for program in (forward, backward):
        saved = [
            t
            for t in buffers(program)
            if len(t.shape) == 4 and static(t.shape[0]) == 2 and static(t.shape[1]) > CHANNELS
        ]
        assert len(saved) >= 4
        for t in saved:
            assert static(t.strides[1]) == 1, t


def test_indices_of_a_pool_are_saved_in_one_byte(saved_for_gpu: list[CompiledRegion]) -> None:
    check_gradients(block, torch.randn(2, CHANNELS, 10, 12), torch.randn(16, CHANNELS, 3, 3), torch.randn(24, 16, 1, 1))
    for program in saved_for_gpu:
        kinds = {t.dtype.name for t in buffers(program) if not t.dtype.is_float}
        assert kinds == {"u8"}, kinds


@pytest.mark.parametrize(("size", "kind"), [(15, "u8"), (17, "i16"), (190, "i32")])
def test_indices_are_as_wide_as_their_values(saved_for_gpu: list[CompiledRegion], size: int, kind: str) -> None:
    check_gradients(lambda x: F.max_pool2d(x, 2).square().sum(), torch.randn(1, 1, size, size))
    assert [t.dtype.name for t in buffers(saved_for_gpu[1]) if not t.dtype.is_float] == [kind]


def test_indices_along_an_axis(saved_for_gpu: list[CompiledRegion]) -> None:
    check_gradients(lambda x: x.max(1).values.square().sum() + x.topk(2, 0).values.sin().sum(), torch.randn(5, 300, 3))
    assert sorted(t.dtype.name for t in buffers(saved_for_gpu[1]) if not t.dtype.is_float) == ["i16", "u8"]


def test_indices_that_a_caller_gets_stay_as_they_are(saved_for_gpu: list[CompiledRegion]) -> None:
    pool = torch.compile(lambda x: F.max_pool2d(x, 2, return_indices=True), backend="mlcomp")
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    values, indices = pool(x)
    assert indices.dtype is torch.int64
    torch.autograd.backward(values.sum())
    assert x.grad is not None
    assert x.grad.count_nonzero() == values.numel()


def test_results_keep_their_strides(saved_for_gpu: list[CompiledRegion]) -> None:
    def both(x: Tensor, w: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        return y.sin() * y

    x, w = torch.randn(2, CHANNELS, 6, 6, requires_grad=True), torch.randn(16, CHANNELS, 3, 3, requires_grad=True)
    made = torch.compile(both, backend="mlcomp", options={"fallback": "error"})(x, w)
    assert made.stride() == both(x, w).stride()
    torch.autograd.backward(made.sum())
    check_gradients(lambda x, w: both(x, w).sum(), x.detach(), w.detach())


@pytest.mark.parametrize("groups", [2, CHANNELS])
def test_grouped_convolutions(saved_for_gpu: list[CompiledRegion], groups: int) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.sin(), w, groups=groups).tanh().sum()

    check_gradients(f, torch.randn(2, CHANNELS, 6, 6), torch.randn(CHANNELS, CHANNELS // groups, 3, 3))


def test_images_that_are_viewed_stay_dense(saved_for_gpu: list[CompiledRegion]) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        return (y.flatten(1).cumsum(1) * y.flatten(1)).sum()

    check_gradients(f, torch.randn(2, CHANNELS, 4, 4), torch.randn(16, CHANNELS, 3, 3) * 0.1)
