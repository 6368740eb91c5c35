"""A memory limit: kernels come in another order where that keeps it; what cannot is an error, not a way to eager."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import compiler
from compiler.backend import mlcomp
from compiler.errors import MemoryLimitError


def branches(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """As written, every product is alive before the first is used again."""
    products = [torch.softmax(x * float(n), -1) @ w for n in range(1, 4)]
    return [torch.softmax(y, -1).sum(-1) for y in products]


def test_an_order_that_keeps_the_limit_is_found() -> None:
    x, w = torch.randn(48, 32), torch.randn(32, 32)
    plain = compiler.compile(branches, [x, w])
    size = compiler.memory_schedule(plain.code, {}).arena.size
    made = compiler.compile(branches, [x, w], memory_limit=size - 1)
    planned = compiler.memory_schedule(made.code, {})
    assert planned.unavoidable <= planned.arena.size < size
    torch.testing.assert_close(made(x, w), branches(x, w))
    said = f"memory_limit=64: .* {planned.arena.size} bytes at their peak, .* at least {planned.unavoidable} in any"
    with pytest.raises(MemoryLimitError, match=said):
        compiler.compile(branches, [x, w], memory_limit=64)


@pytest.mark.parametrize(
    ("limit", "said"),
    [(64, "MemoryLimitError: memory_limit=64: .* at least"), (0, "a number of bytes, at least 1, not 0")],
)
def test_a_limit_that_cannot_be_kept_is_an_error_of_torch_compile(limit: int, said: str) -> None:
    x, w = torch.randn(48, 32), torch.randn(32, 32)
    with pytest.raises(BackendCompilerFailed, match=said):
        torch.compile(branches, backend=mlcomp, options={"memory_limit": limit})(x, w)
