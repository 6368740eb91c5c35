"""Convert element types and tensor types between PyTorch and the IRs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from compiler.errors import Unsupported
from compiler.ir.aten import Type
from compiler.ir.dtype import DTYPES, HALVES, DType
from compiler.ir.expr import Expr, dim

TORCH_DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
IR_DTYPES = {theirs: DTYPES[name] for name, theirs in TORCH_DTYPES.items()}
TORCH_HALVES = frozenset(TORCH_DTYPES[dtype.name] for dtype in HALVES)


def torch_dtype(dtype: DType) -> torch.dtype:
    return TORCH_DTYPES[dtype.name]


def widened(x: torch.Tensor) -> torch.Tensor:
    """The tensor in the type in which it is computed with: f32 for floats of 16 bits."""
    return x.float() if x.dtype in TORCH_HALVES else x


def ir_dtype(dtype: torch.dtype) -> DType:
    """Our element type for torch's; raises Unsupported if there is none."""
    if dtype not in IR_DTYPES:
        raise Unsupported(str(dtype), (), f"the element types are {', '.join(TORCH_DTYPES)}")
    return IR_DTYPES[dtype]


def tensor_type(tensor: torch.Tensor, size: Callable[[int], Expr] = dim) -> Type:
    """The type of a tensor, real or fake. `size` converts its sizes and strides to expressions.

    Raises Unsupported for an element type or layout that the IRs lack.
    """
    if tensor.layout is not torch.strided:
        raise Unsupported(str(tensor.layout), (), "only dense tensors")
    return Type(ir_dtype(tensor.dtype), tuple(map(size, tensor.shape)), tuple(map(size, tensor.stride())))
