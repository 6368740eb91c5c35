"""Powers: `pow` for floats; for integers, which wrap, an equation for every few bits of the exponent."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, boolean, i64
from compiler.ir.expr import Expr, cast, op, static
from compiler.passes.torch_to_tensor import formula as f
from compiler.passes.torch_to_tensor.builder import Builder, Index, Operand, Rule, Value, element
from compiler.passes.torch_to_tensor.pointwise import pointwise, promote, scalar

_DIGIT_BITS = 4  # bits of the exponent per equation


def power(b: Builder, self: Operand, exponent: Operand) -> Value:
    dtype = b.out.dtype
    if dtype.is_float:
        return pointwise(lambda x, y: op("pow", x, y))(b, self, exponent)
    if promote(self, exponent) is boolean:
        raise b.refuse("powers of truth values")

    def factor(at: Index, n: int) -> Expr:
        base = element(self, at, dtype)
        bit = op("and", op("shr", element(exponent, at, dtype), n), 1)
        return f.where(op("eq", bit, 1), base, f.lit(1, base))

    if dtype.kind == "uint":
        return _by_digits(b, dtype.bits, factor)
    magnitude = _by_digits(b, dtype.bits - 1, factor)

    def signed(at: Index) -> Expr:
        base, count = element(self, at, dtype), element(exponent, at, dtype)
        return f.where(op("lt", count, 0), f.negative_power(base, count), magnitude.at(at))

    return b.map(b.out.shape, signed)


def power_by(b: Builder, self: Value, exponent: float | Expr) -> Value:
    """A power with one exponent for all elements."""
    dtype = b.out.dtype
    if isinstance(exponent, Expr):
        return power(b, self, exponent if dtype.is_float else _integer_exponent(exponent, dtype))
    if dtype.is_float:
        return pointwise(lambda x: f.power_by(x, exponent))(b, self)
    count = static(scalar(b, exponent, dtype))
    if count != exponent or exponent < 0:
        raise b.refuse("the exponent of integers is a whole number, not negative")

    def factor(at: Index, n: int) -> Expr:
        base = element(self, at, dtype)
        return base if int(count) >> n & 1 else f.lit(1, base)

    return _by_digits(b, max(int(count).bit_length(), 1), factor)


def _integer_exponent(exponent: Expr, dtype: DType) -> Expr:
    """The exponent as an integer of this type; the program fails if it is negative or too large."""
    n = cast(exponent, i64)
    return op("require", op("and", op("ge", n, 0), op("le", n, dt.integer_range(dtype)[1])), n)


def _by_digits(b: Builder, bits: int, factor: Callable[[Index, int], Expr]) -> Value:
    """A power by repeated squaring; `factor(at, n)` is the base if bit `n` of the exponent is set, else 1."""
    value: Value | None = None
    for first in reversed(range(0, bits, _DIGIT_BITS)):
        digit = range(first, min(first + _DIGIT_BITS, bits))
        value = b.map(b.out.shape, _square_and_multiply(value, digit, factor), "power")
    assert value is not None, "an exponent has bits"
    return value


def _square_and_multiply(
    higher: Value | None, digit: range, factor: Callable[[Index, int], Expr]
) -> Callable[[Index], Expr]:
    """Square the result of the higher bits for each bit of the digit, and multiply by its factor."""

    def element_at(at: Index) -> Expr:
        out = None if higher is None else higher.at(at)
        for n in reversed(digit):
            out = factor(at, n) if out is None else out * out * factor(at, n)
        assert out is not None, "a digit has bits"
        return out

    return element_at


RULES: dict[str, Rule] = {"aten.pow.Tensor_Scalar": power_by, "aten.pow.Tensor_Tensor": power, "aten.pow.Scalar": power}
