"""Gradients through torch.compile: to what was largest, far from a margin, and with batches of any size."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compiler.backend import FallbackWarning
from compiler.tests.meaning import fresh_seed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients_go_to_what_was_largest(dtype: torch.dtype) -> None:
    """Forward and backward agree on which elements are equal to the largest of a row."""
    torch.manual_seed(seed := fresh_seed())
    x, ours = (t.detach().requires_grad_() for t in [torch.randn(9, 33, dtype=dtype)] * 2)

    def largest(x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(F.gelu(torch.cos(x), approximate="tanh").unsqueeze(0).amax(-1))

    largest(x).sum().backward()  # type: ignore[no-untyped-call]
    torch.compile(largest, backend="mlcomp")(ours).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and ours.grad is not None
    assert torch.equal(ours.grad.isfinite(), x.grad.isfinite()), seed
    assert bool(((ours.grad != 0).sum(-1) >= 1).all()), seed


def test_a_gradient_far_from_its_margin_keeps_its_digits() -> None:
    x, target = torch.linspace(9, 16, 15), torch.ones(15)
    exact, ours = x.double().requires_grad_(), x.clone().requires_grad_()
    F.soft_margin_loss(exact, target.double()).backward()  # type: ignore[no-untyped-call]
    torch.compile(F.soft_margin_loss, backend="mlcomp")(ours, target).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-5, atol=0)  # type: ignore[union-attr]


def test_batches_of_any_size_are_trained_on() -> None:
    """Forward once for all of them; backward, in which numbers depend on the size, once for each, none in eager."""
    torch.manual_seed(seed := fresh_seed())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    eager = copy.deepcopy(model)
    run = torch.compile(model, backend="mlcomp", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for size in (4, 6):
            x = torch.randn(size, 3, 4, 4)
            for f in (run, eager):
                f(x).square().mean().backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4, msg=f"seed {seed}")
    for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):  # type: ignore[assignment]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=f"seed {seed}")
