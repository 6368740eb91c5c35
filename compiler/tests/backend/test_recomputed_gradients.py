"""Gradients whose forward values the backward pass computes again, in bf16, at random rows and rows of equal elements.

Forward and backward are two programs here, and what the first rounds and the second does not is their difference.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

# Functions of a matrix [6, 4]; the backward pass recomputes their argument, asinh of the leaf.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "amax": lambda x: x.amax(-1),
    "max": lambda x: x.max(-1).values,
    "median": lambda x: x.median(-1).values,
    "cummax": lambda x: x.cummax(-1).values,
    "sort": lambda x: x.sort(-1).values,
    "std": lambda x: x.std(-1),
    "var": lambda x: x.var(-1),
    "prod": lambda x: x.prod(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), -1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(0)),
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2)[0],
    "lp_pool1d": lambda x: F.lp_pool1d(x[None], 2.0, 2)[0],
    "local_response_norm": lambda x: F.local_response_norm(x[None], 2)[0],
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "relu of the centred": lambda x: F.relu(x - x.mean()),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "sqrt of the square": lambda x: (x * x).sqrt(),
    "abs of the centred": lambda x: (x - x.mean(-1, keepdim=True)).abs(),
    "logit": lambda x: torch.logit(torch.sigmoid(x)),
    "log1p": lambda x: torch.log1p(-torch.sigmoid(x)),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(
        torch.sigmoid(x), torch.full_like(x, 0.5), reduction="none"
    ),
    "kl_div": lambda x: F.kl_div(F.log_softmax(x, -1), F.softmax(x.flip(0), -1), reduction="none"),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(6, dtype=torch.long)),
    "fmod": lambda x: torch.fmod(x, 0.5),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])[0, 0],
    "power": lambda x: x.abs() ** 1.5,
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "gelu": F.gelu,
    "mish": F.mish,
    "glu": lambda x: F.glu(x, -1),
    "weight_norm": lambda x: torch._weight_norm(x, x[:, :1].abs() + 1, 0),
    "gram diagonal": lambda x: (x @ x.t()).diagonal(),
    "scatter_reduce": lambda x: x.scatter_reduce(1, torch.zeros(6, 4, dtype=torch.long), x * 2, "amax"),
    "aminmax": lambda x: torch.add(*torch.aminmax(x, dim=-1)),
    "xlogy": lambda x: torch.xlogy(x.abs(), x.abs()),
    "lgamma": lambda x: torch.lgamma(x.abs() + 1),
}


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "random"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_err_by_little_more_than_eager(function: str, equal: bool, seed: int) -> None:
    """`equal`: the elements of a row are one number."""
    torch.manual_seed(seed)
    x = ((torch.rand(6, 1) * 4 - 2).expand(6, 4) if equal else torch.randn(6, 4) * 2).bfloat16().contiguous()

    def of_computed(x: Tensor) -> Tensor:
        return FUNCTIONS[function](torch.asinh(x))

    tangent = torch.randn(of_computed(x).shape).bfloat16()

    def gradient(run: Callable[[Tensor], Tensor], leaf: Tensor) -> Tensor:
        leaf = leaf.clone().requires_grad_()
        return torch.autograd.grad(run(leaf), leaf, tangent.to(leaf.dtype))[0].double()

    torch._dynamo.reset()
    compiled = torch.compile(of_computed, backend="mlcomp", options={"target": "cpu", "fallback": "error"})
    found, eager, wanted = gradient(compiled, x), gradient(of_computed, x), gradient(of_computed, x.double())
    assert torch.equal(found.isnan(), eager.isnan())
    # What rounding chooses, such as one of two maxima that are nearly equal, ours may choose as eager does or as f64.
    distance = torch.minimum((found - wanted).abs(), (found - eager).abs()).nan_to_num(0.0)
    error = (eager - wanted).abs().nan_to_num(0.0).max()
    # The gradient may be zero and its terms, of the tangent's size, not.
    size = torch.maximum(wanted.abs().nan_to_num(0.0).max(), tangent.abs().max())
    assert float(distance.max()) <= 3 * float(error) + 0.02 * float(size), distance
