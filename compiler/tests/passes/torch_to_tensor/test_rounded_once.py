"""What matmuls read, which round it, is read rounded by all others as well; what no matmul reads is not rounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compiler
from compiler.tests.meaning import fresh_seed

N = 32
# Calls that read a matrix as operands of matmuls.
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda h: h @ h, "transposed": lambda h: h.t() @ h[:1].t(), "linear": lambda h: F.linear(h, h),
    "batched": lambda h: torch.bmm(h.view(2, N // 2, N), h.view(2, N, N // 2)),
    "convolution": lambda h: F.conv1d(h[None], h[:, :, None]),
    "attention": lambda h: F.scaled_dot_product_attention(h.view(1, 2, N // 2, N), h[None, None], h[None, None]),
}  # fmt: skip


def both(h: Tensor, reader: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    h = h * 0.3
    return h * 3, reader(h)


def tripled(function: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> Tensor:
    program = compiler.capture(function, [x]).program
    lowering = compiler.lower(program, compiler.target("cpu"), until="tensor")
    return compiler.execute(lowering, "tensor", [x])[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reader", READERS)
def test_a_value_that_a_matmul_reads_is_rounded_for_its_other_readers(reader: str, dtype: torch.dtype) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(N, N).to(dtype)
    made, wanted = tripled(lambda x: both(x, READERS[reader]), x), x * 0.3 * 3
    assert torch.equal(made, wanted), f"seed {seed}"


def test_a_value_that_no_matmul_reads_is_not_rounded() -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(N, N).bfloat16()
    made, exact = tripled(lambda x: both(x, lambda h: h.t().exp()), x), x.float() * 0.3 * 3
    assert torch.equal(made, exact.bfloat16()) and not torch.equal(made, x * 0.3 * 3), f"seed {seed}"
