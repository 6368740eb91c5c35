"""Element types: twelve storage types, and vectors of them in Kernel IR."""

from __future__ import annotations

import struct

from compiler.ir.node import Node


class DType(Node):
    """`kind` is "float", "int", "uint" or "bool"; `bits` is the width of one lane in memory."""

    name: str
    kind: str
    bits: int
    lanes: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of one value, all lanes together."""
        return self.bits // 8 * self.lanes

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def __str__(self) -> str:
        return self.name if self.lanes == 1 else f"{self.name}x{self.lanes}"


f64 = DType("f64", "float", 64)
f32 = DType("f32", "float", 32)
bf16 = DType("bf16", "float", 16)
f16 = DType("f16", "float", 16)
f8e4m3 = DType("f8e4m3", "float", 8)  # torch's float8_e4m3fn: no infinity, one NaN of each sign
f8e5m2 = DType("f8e5m2", "float", 8)
i64 = DType("i64", "int", 64)
i32 = DType("i32", "int", 32)
i16 = DType("i16", "int", 16)
i8 = DType("i8", "int", 8)
u8 = DType("u8", "uint", 8)
boolean = DType("bool", "bool", 8)

DTYPES = {d.name: d for d in (f64, f32, bf16, f16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, boolean)}

# Short floats are storage-only: arithmetic is done in f32 (design: accumulate in fp32 for 16-bit types).
HALVES, EIGHTHS = (bf16, f16), (f8e4m3, f8e5m2)
STORAGE_ONLY = (*HALVES, *EIGHTHS)


def compute(dtype: DType) -> DType:
    """The type in which arithmetic on values stored as `dtype` is done."""
    return f32 if dtype in STORAGE_ONLY else dtype


def vector(dtype: DType, lanes: int) -> DType:
    return dtype.replace(lanes=lanes)


def parse(text: str) -> DType:
    """`f32` or, in Kernel IR, `f32x8`; raises KeyError for anything else."""
    name, _, lanes = text.partition("x")
    return vector(DTYPES[name], int(lanes)) if lanes else DTYPES[name]


def integer_range(dtype: DType) -> tuple[int, int]:
    """Least and greatest value of an integer or bool type."""
    if dtype.kind == "bool":
        return 0, 1
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def rounded(value: float, dtype: DType) -> float:
    """A Python float as `dtype` stores it (f64 and f32 only: constants are never of a storage-only type)."""
    if dtype is f32:
        try:
            return float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return value
