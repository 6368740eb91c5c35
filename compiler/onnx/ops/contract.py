"""Ops that multiply and sum, or look at windows."""

from __future__ import annotations

import torch
from torch import Tensor

from compiler.onnx.ops.row import Row, plain, row


def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
) -> Tensor:
    a, b = (a.t() if transA else a), (b.t() if transB else b)
    made = torch.matmul(a, b)
    made = made if alpha == 1 else (made * alpha).to(made.dtype)
    return made if c is None else made + (c if beta == 1 else (c * beta).to(made.dtype))


ROWS: dict[str, Row] = plain({"MatMul": torch.matmul}) | {"Gemm": row(_gemm)}
