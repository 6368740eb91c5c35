"""Convert element types and tensor types between PyTorch and the IRs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from compiler.errors import Unsupported
from compiler.ir.aten import Type
from compiler.ir.dtype import DTYPES, DType
from compiler.ir.expr import Expr, dim

TORCH = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
OURS = {theirs: DTYPES[name] for name, theirs in TORCH.items()}


def torch_dtype(dtype: DType) -> torch.dtype:
    return TORCH[dtype.name]


def our_dtype(dtype: torch.dtype) -> DType:
    """Our element type for torch's; raises Unsupported if there is none."""
    if dtype not in OURS:
        raise Unsupported(str(dtype), (), f"the element types are {', '.join(TORCH)}")
    return OURS[dtype]


def tensor_type(t: torch.Tensor, size: Callable[[int], Expr] = dim) -> Type:
    """The type of a tensor, real or fake. `size` converts its sizes and strides to expressions.

    Raises Unsupported for an element type or layout that the IRs lack.
    """
    if t.layout is not torch.strided:
        raise Unsupported(str(t.layout), (), "only dense tensors")
    return Type(our_dtype(t.dtype), tuple(map(size, t.shape)), tuple(map(size, t.stride())))
