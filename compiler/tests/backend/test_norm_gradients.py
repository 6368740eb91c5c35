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
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("norm", NORMS)
def test_rows_of_equal_elements(norm: str, target: str, dtype: torch.dtype, seed: int) -> None:
    """Their variance is zero: what differs from the saved mean is multiplied by 1 / sqrt(eps), 316."""
    torch.manual_seed(seed)
    x = (torch.rand(6, 1) * 4 - 2).expand(6, 4).to(dtype).contiguous()
    tangent = torch.randn(6, 4).to(dtype)

    def gradient(run: Callable[[Tensor], Tensor], leaf: Tensor) -> Tensor:
        leaf = leaf.clone().requires_grad_()
        return torch.autograd.grad(run(leaf), leaf, tangent.to(leaf.dtype))[0].double()

    def normalised(x: Tensor) -> Tensor:
        return NORMS[norm](torch.asinh(x))

    torch._dynamo.reset()
    compiled = torch.compile(normalised, backend="mlcomp", options={"target": target, "fallback": "error"})
    found, wanted = gradient(compiled, x), gradient(normalised, x.double())
    # Eager's own error: the input's slope and the result are rounded, and so is the mean of four tangents.
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.02 * float(wanted.abs().max()))
