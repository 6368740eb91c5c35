"""Gradients of norms of 16-bit values that the backward pass computes again."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer": lambda x: F.layer_norm(x, (4,)),
    "group": lambda x: F.group_norm(x, 1),
    "instance": lambda x: F.instance_norm(x[None])[0],
    "batch": lambda x: F.batch_norm(x.t(), None, None, training=True).t(),
    "groups of two elements": lambda x: F.group_norm(x, 2),
}


def gradient(run: Callable[[Tensor], Tensor], leaf: Tensor, tangent: Tensor) -> Tensor:
    leaf = leaf.clone().requires_grad_()
    return torch.autograd.grad(run(leaf), leaf, tangent.to(leaf.dtype))[0].double()


def of_computed(norm: str) -> Callable[[Tensor], Tensor]:
    """The norm of values that the backward pass computes again."""
    return lambda x: NORMS[norm](torch.asinh(x))


def compiled(norm: str, target: str) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(of_computed(norm), backend="mlcomp", options={"target": target, "fallback": "error"})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("norm", NORMS)
def test_rows_of_equal_elements(norm: str, target: str, dtype: torch.dtype, seed: int) -> None:
    """Their variance is zero: what differs from the saved mean is multiplied by 1 / sqrt(eps), 316."""
    torch.manual_seed(seed)
    x = (torch.rand(6, 1) * 4 - 2).expand(6, 4).to(dtype).contiguous()
    tangent = torch.randn(6, 4).to(dtype)

    found, wanted = gradient(compiled(norm, target), x, tangent), gradient(of_computed(norm), x.double(), tangent)
    # Eager's own error: the input's slope and the result are rounded, and so is the mean of four tangents.
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("norm", NORMS)
def test_random_rows(norm: str, target: str, dtype: torch.dtype, seed: int) -> None:
    """Of two elements almost nothing is left but the rounding of their mean, which forward and backward share."""
    torch.manual_seed(seed)
    x, tangent = (torch.randn(6, 4) * 2).to(dtype), torch.randn(6, 4).to(dtype)
    wanted, eager = (gradient(of_computed(norm), leaf, tangent) for leaf in (x.double(), x))
    found = gradient(compiled(norm, target), x, tangent)
    error, eager_error = (float((y - wanted).abs().max()) for y in (found, eager))
    assert error <= 1.5 * eager_error + 0.02 * float(eager.abs().max())
