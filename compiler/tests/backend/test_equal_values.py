"""Gradients of functions that compute a value twice and save views of the second: AOTAutograd unites the two.

What a forward pass saves must all have been written, so memory is filled with NaN before each call.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.tests.meaning import fresh_seed

Results = tuple[Tensor, ...]

# By the views that are saved; `twice` gives a matrix [4, 9] each time that it is called.
FUNCTIONS: dict[str, Callable[[Callable[[], Tensor]], Results]] = {
    "chunks": lambda twice: _products(twice().sin(), *twice().chunk(3, -1)),
    "splits": lambda twice: _products(twice().sin(), *torch.split(twice(), [3, 3, 3], -1)),
    "slices": lambda twice: (twice().sin(), (z := twice())[1:] @ z[:-1].mT, z[:, 2:].mT @ z[:, :3]),
    "rows": lambda twice: (twice().sin(), (z := twice().unbind(0))[0].outer(z[1]), z[2] * z[3]),
    "views of views": lambda twice: (twice().sin(), (z := twice().t()) @ z.t(), z.view(3, 3, 4)[1] @ z[:3].t()),
    "attention": lambda twice: (twice().sin(), _attention(*twice().chunk(3, -1))),
}
VALUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exp": lambda x, w: (x * 0.5).exp(),
    "linear": F.linear,
}


def _products(first: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Results:
    return first, (a @ b.mT).softmax(-1) @ c


def _total(results: Results) -> Tensor:
    return torch.stack([t.cos().sum() for t in results]).sum()


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("views", FUNCTIONS)
def test_views_of_a_value_that_is_computed_twice(views: str, value: str, dynamic: bool) -> None:
    torch.manual_seed(seed := fresh_seed())
    x, w = torch.randn(4, 9, requires_grad=True), torch.randn(9, 9) / 3

    def function(x: Tensor) -> Results:
        return FUNCTIONS[views](lambda: VALUES[value](x, w))

    compiled = torch.compile(function, backend="mlcomp", dynamic=dynamic)
    (expected,) = torch.autograd.grad(_total(function(x)), x)
    for _ in range(2):
        freed = [torch.full((n,), float("nan")) for n in range(8, 128) for _ in range(4)]
        del freed
        (found,) = torch.autograd.grad(_total(compiled(x)), x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, msg=lambda text: f"{text}\nseed {seed}")
