"""What MLIR's own tools make of TOSA computes what the interpreter of Tensor IR says, where it is not refused."""

from __future__ import annotations

import pytest
import torch

from compiler.errors import Unsupported
from compiler.ir import tensor_text
from compiler.ir.dtype import DType, boolean, f32, i32, i64
from compiler.ir.expr import OPS
from compiler.render.mlir import tosa
from compiler.tests.render.mlir.running import each, needs_tools, run, same

UNITS = 4.0  # a quotient is a product with a reciprocal, a function one of another
LEAST = 1e-30  # of what is less, the reciprocal may be infinite
PROGRAM = """def f(a: f32[3, 8], b: f32[5, 4], at: i32[6]):
    with kernel("k"):
        p[i: 3, j: 5]: f32 = sum(a[i, r + 2] * b[j, r] for r in range(4))
        m[()]: f32 = max(p[i, j] for i in range(3) for j in range(5))
        y[j: 6, i: 3]: f32 = (p[i, j - 1] / 2.0 if (j >= 1) & (i < 2) else f32(at[5 - j]))
        n[i: 3]: i64 = sum(i64(a[i, 2 * r] * 3.0) // 2 for r in range(4))
    result(y, f32[6, 3])
    result(n, i64[3])
    result(m, f32[()])
"""


def has(name: str, dtype: DType) -> bool:
    try:
        tosa.render(each([name], dtype)[0])
    except Unsupported:
        return False
    return True


@needs_tools
@pytest.mark.parametrize("dtype", [f32, i64, i32, boolean], ids=str)
def test_every_operation_that_is_not_refused(dtype: DType) -> None:
    every = [n for n, row in OPS.items() if dtype.kind in row.kinds and n not in ("where", "require")]
    names = [n for n in every if has(n, dtype)]
    outcome, wanted = run(*each(names, dtype, LEAST), "mlir:tosa")
    for n, made, right in zip(names, outcome.outputs, wanted, strict=True):
        same(n, made, right, UNITS if n in ("div", "log2", "log10", "exp2", "sqrt") else 1.0)


@needs_tools
def test_slices_products_gathers_and_reductions(seed: int) -> None:
    torch.manual_seed(seed)
    inputs = [torch.randn(3, 8), torch.randn(5, 4), torch.randint(-9, 9, (6,), dtype=torch.int32)]
    outcome, wanted = run(tensor_text.parse(PROGRAM), inputs, "mlir:tosa")
    for made, right in zip(outcome.outputs, wanted, strict=True):
        torch.testing.assert_close(made, torch.tensor(right), msg=lambda text: f"{text}, seed {seed}")
