"""Values of a Triton kernel as text, with their axes, types, literals and names."""

from __future__ import annotations

import keyword
import math
from dataclasses import dataclass, replace

from compiler.ir.dtype import DType, boolean, f32, i64

TYPES = {
    "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "int1",
}  # fmt: skip
RESERVED = frozenset({*keyword.kwlist, "tl", "triton", "libdevice", "float", "range", "OPTIONS", "mlc_failed"})
Axes = frozenset[str]
NONE: Axes = frozenset()
LOOSE, SUM, PRODUCT, ATOM = range(4)


@dataclass(frozen=True)
class Value:
    """`code` is a Triton tensor that varies along `axes`, which are loops over lanes; without axes, a scalar.

    A `narrow` index has type i64 but is held in 32 bits. A `literal` is a Python number, which takes the type of the
    other operand. `level` is the precedence of the text.
    """

    code: str
    dtype: DType
    axes: Axes = NONE
    narrow: bool = False
    literal: bool = False
    level: int = ATOM

    @property
    def is_atom(self) -> bool:
        return self.level == ATOM

    @property
    def operand(self) -> str:
        return self.at(ATOM)

    def at(self, level: int) -> str:
        """The text as an operand of at least this level, in parentheses if necessary."""
        return self.code if self.level >= level else f"({self.code})"

    @property
    def typed(self) -> str:
        """The text with a fixed type, whatever the other operand is."""
        return f"tl.full([], {self.code}, {self.type})" if self.literal else self.code

    @property
    def typed_operand(self) -> str:
        """The same, as an operand."""
        return self.typed if self.literal else self.operand

    @property
    def argument(self) -> str:
        """The text as an argument of one of Triton's own functions, which take Python numbers for f32."""
        return self.code if self.dtype is f32 else self.typed

    @property
    def type(self) -> str:
        return f"tl.{'int32' if self.narrow else TYPES[self.dtype.name]}"


def literal(value: bool | int | float, dtype: DType) -> Value:
    """A literal; an index is narrow if it fits 32 bits."""
    if dtype.is_float and not math.isfinite(value):
        return Value(f'float("{value}")', dtype, literal=True)
    text = repr(float(value)) if dtype.is_float else repr(bool(value)) if dtype is boolean else repr(int(value))
    return Value(text, dtype, narrow=dtype is i64 and -(2**31) <= value < 2**31, literal=True)


def convert(v: Value, dtype: DType) -> Value:
    """Convert to another type, or a narrow index to 64 bits."""
    if v.dtype is dtype and not v.narrow:
        return v
    return Value(conversion_text(v, dtype), dtype, v.axes)


def conversion_text(v: Value, dtype: DType) -> str:
    """The text of a conversion; loop counters are Python numbers in Triton's interpreter."""
    if v.literal or v.axes or not v.narrow:
        return f"{v.typed_operand}.to(tl.{TYPES[dtype.name]})"
    return f"tl.cast({v.code}, tl.{TYPES[dtype.name]})"


def negation(v: Value) -> Value:
    """The negation of a condition, which may be a Python bool."""
    return Value(f"{v.operand} == 0", boolean, v.axes, level=LOOSE)


def widen_index(v: Value) -> Value:
    """An index in 64 bits."""
    if v.literal:
        return replace(v, narrow=False)
    return convert(v, i64) if v.narrow else v
