"""Views of bits as another element type: kernels end at them, and no call runs in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.errors import Unsupported
from compiler.tests.meaning import fresh_seed

pytestmark = pytest.mark.usefixtures("fresh")  # fails on warnings of calls in eager


def changed(x: Tensor) -> Tensor:
    x.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return x + 1


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "of an input": lambda x: x.view(torch.int32),
    "of an input that is read": lambda x: x.view(torch.int32) + 1,
    "as a result": lambda x: (x * 2).view(torch.int16),
    "there and back": lambda x: ((x * 2).view(torch.int32) & 0x7FFFFFFF).view(torch.float32) + 1,
    "of both": lambda x: (lambda y: (y, y.view(torch.int32) + 1))(x * 2),
    "of 16 bits": lambda x: (x.bfloat16() * 3).view(torch.int16) + 1,
    "of smaller elements": lambda x: (x * 3).view(torch.uint8).sum(-1),
    "of larger elements": lambda x: (x * 3).view(torch.int64) + 1,
    "in place": changed,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("fallback", ["eager", "error"])
def test_bits_are_those_of_eager(function: Callable[[Tensor], Any], fallback: str) -> None:
    torch.manual_seed(fresh_seed())
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": fallback})
    for _ in range(2):
        x = torch.randn(4, 8)
        expected, results = (f(x.clone()) for f in (function, compiled))
        torch.testing.assert_close(results, expected, rtol=0, atol=0, check_stride=True)


def strict(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend="mlcomp", options={"fallback": "error"}, **options)


def test_gradients_pass_them_by() -> None:
    def loss(x: Tensor) -> Tensor:
        sign = (x * 2).view(torch.int32) >> 31
        return (x * sign).sum()

    compiled = strict(loss)
    for _ in range(2):
        x = torch.randn(4, 8, requires_grad=True)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(loss(x), x))


def test_sizes_may_vary_unless_the_view_changes_them() -> None:
    def increased(x: Tensor, dtype: torch.dtype) -> Tensor:
        return (x * 3).view(dtype) + 1

    compiled = strict(increased, dynamic=True)
    for n in (5, 7):
        x = torch.randn(n, 6)
        assert torch.equal(compiled(x, torch.int32), increased(x, torch.int32))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"view\.dtype") as failure:
        compiled(torch.randn(5, 6), torch.uint8)
    assert isinstance(failure.value.inner_exception, Unsupported)


def test_beside_them_other_calls_are_refused_as_before() -> None:
    def eigenvalues(x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.eigvalsh(x @ x.t())
        return values.view(torch.int32) + 1

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="eigh"):
        strict(eigenvalues)(torch.randn(4, 4))
