"""Formulas of pointwise ops as functions of scalar expressions; all operands have one type, a computing type.

They agree with torch on NaN, infinities, signed zeros and ties, and do not overflow where a plain formula would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from compiler.ir.dtype import boolean, i32
from compiler.ir.expr import Expr, cast, const, op

E = Expr


def lit(value: float, x: E) -> E:
    """A constant of `x`'s type."""
    return const(value, x.dtype)


def where(cond: E, a: E, b: E) -> E:
    return op("where", cond, a, b)


def polynomial(x: E, coefficients: Sequence[float]) -> E:
    """Horner's scheme; coefficients from the constant term up."""
    total = lit(coefficients[-1], x)
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def inverse(x: E) -> E:
    return lit(1, x) / x


def is_whole(x: E) -> E:
    return op("eq", x, op("floor", x))


def add(a: E, b: E) -> E:
    return op("or" if a.dtype is boolean else "add", a, b)


def mul(a: E, b: E) -> E:
    return op("and" if a.dtype is boolean else "mul", a, b)


def floored_quotient(a: E, b: E, left_over: E) -> E:
    """The quotient rounded down to within one unit, from the exact remainder `rem(a, b)`, so that 1 // 0.1 is 9."""
    quotient = (a - left_over) / b
    return where(_signs_differ(left_over, b), quotient - 1.0, quotient)


def floored(quotient: E, a: E, b: E) -> E:
    """Round `quotient`, which is nearly an integer, to that integer; a zero keeps the sign of a / b."""
    down = op("floor", quotient)
    down = where(op("gt", quotient - down, lit(0.5, a)), down + 1.0, down)
    down = where(op("eq", quotient, lit(0, a)), a / b * 0.0, down)
    return where(op("eq", b, lit(0, a)), a / b, down)


def _signs_differ(left_over: E, divisor: E) -> E:
    """Whether the remainder is not zero and its sign differs from the divisor's."""
    zero = lit(0, divisor)
    return op("and", op("ne", left_over, zero), op("xor", op("lt", divisor, zero), op("lt", left_over, zero)))


def truncating_divide(a: E, b: E) -> E:
    return op("trunc", a / b) if a.dtype.is_float else op("truncdiv", a, divisor(b))


def divisor(b: E) -> E:
    """The divisor, required not to be 0 if it is an integer."""
    return b if b.dtype.is_float else op("require", op("ne", b, 0), b)


def fmod(a: E, b: E) -> E:
    """The remainder that has the sign of the dividend."""
    return op("rem", a, divisor(b))


def remainder(a: E, b: E) -> E:
    """The remainder that has the sign of the divisor."""
    if not a.dtype.is_float:
        return a % divisor(b)
    left_over = op("rem", a, b)
    return where(_signs_differ(left_over, b), left_over + b, left_over)


def lcm(a: E, b: E) -> E:
    """The least common multiple; narrow types are computed in 32 bits, as in C."""
    wide = i32 if a.dtype.bits < i32.bits else a.dtype
    multiple = cast(op("truncdiv", a, op("gcd", a, b)), wide) * cast(b, wide)  # gcd(0, 0) is 0, and so is 0 / 0 here
    return cast(op("abs", multiple), a.dtype)


def sign(a: E) -> E:
    """-1, 0 or 1; 0 for NaN, as in torch."""
    if a.dtype is boolean:
        return a
    zero, one = lit(0, a), lit(1, a)
    positive = where(op("gt", a, zero), one, zero)
    return positive if a.dtype.kind == "uint" else where(op("lt", a, zero), op("neg", one), positive)


def ignoring_nan(op_name: str) -> Callable[[E, E], E]:
    """`fmax` and `fmin`: NaN only if both operands are NaN."""

    def formula(a: E, b: E) -> E:
        if not a.dtype.is_float:
            return op(op_name, a, b)
        return where(op("isnan", a), b, where(op("isnan", b), a, op(op_name, a, b)))

    return formula


def left_shift(a: E, b: E) -> E:
    in_range = op("and", op("ge", b, 0), op("lt", b, a.dtype.bits))
    return where(in_range, op("shl", a, where(in_range, b, lit(0, b))), lit(0, a))


def right_shift(a: E, b: E) -> E:
    max_shift = a.dtype.bits - 1
    in_range = op("and", op("ge", b, 0), op("le", b, max_shift))
    overshift = op("shr", a, lit(max_shift, a)) if a.dtype.kind == "int" else lit(0, a)
    return where(in_range, op("shr", a, where(in_range, b, lit(0, b))), overshift)


def power_by(x: E, exponent: float) -> E:
    """A power with a known exponent: exponents up to 3 by multiplication, as in torch, 0.5 and -0.5 by roots."""
    match exponent:
        case 0:
            return lit(1, x)
        case 0.5:
            return op("sqrt", x)
        case -0.5:
            return op("rsqrt", x)
    products = {1: x, 2: x * x, 3: x * x * x}
    if abs(exponent) not in products:
        return op("pow", x, lit(exponent, x))
    product = products[int(abs(exponent))]
    return product if exponent > 0 else lit(1, x) / product


def negative_power(a: E, b: E) -> E:
    """An integer to a negative power, truncated: 0 except for bases 1 and -1."""
    one, minus_one = lit(1, a), lit(-1, a)
    alternating = where(op("eq", op("and", b, one), one), minus_one, one)
    return where(op("eq", a, one), one, where(op("eq", a, minus_one), alternating, lit(0, a)))


def sigmoid(x: E) -> E:
    return lit(1, x) / (op("exp", -x) + 1.0)


def silu(x: E) -> E:
    return x / (op("exp", -x) + 1.0)


def softplus(x: E, beta: float = 1, threshold: float = 20) -> E:
    scaled = x * beta
    return where(op("gt", scaled, threshold), x, op("log1p", op("exp", scaled)) / beta)


def log_sigmoid(x: E) -> E:
    return op("min", x, 0.0) - op("log1p", op("exp", -op("abs", x)))


def mish(x: E) -> E:
    return x * op("tanh", op("log1p", op("exp", x)))


def relu(x: E) -> E:
    return op("or", x, False) if x.dtype is boolean else where(op("lt", x, 0), lit(0, x), x)


def hardtanh(x: E, min_val: float = -1, max_val: float = 1) -> E:
    """Limits are truncated to integers for integer types."""
    if not x.dtype.is_float:
        min_val, max_val = int(min_val), int(max_val)
    return op("min", op("max", x, lit(min_val, x)), lit(max_val, x))


def hardsigmoid(x: E) -> E:
    return hardtanh(x + 3.0, 0, 6) / 6.0


def hardswish(x: E) -> E:
    return x * hardtanh(x + 3.0, 0, 6) / 6.0


def elu(x: E, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> E:
    return where(op("lt", x, 0), op("expm1", x * input_scale) * (alpha * scale), x * scale)


def celu(x: E, alpha: float = 1.0) -> E:
    return elu(x, alpha, 1, 1 / alpha)


def selu(x: E) -> E:
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def leaky_relu(x: E, negative_slope: float = 0.01) -> E:
    return where(op("gt", x, 0), x, x * negative_slope)


def threshold(x: E, threshold: float, value: float) -> E:
    return where(op("le", x, lit(threshold, x)), lit(value, x), x)


def hardshrink(x: E, lambd: float = 0.5) -> E:
    return where(op("and", op("ge", x, -lambd), op("le", x, lambd)), lit(0, x), x)


def softshrink(x: E, lambd: float = 0.5) -> E:
    return where(op("gt", x, lambd), x - lambd, where(op("lt", x, -lambd), x + lambd, x * 0.0))


def gelu(x: E, approximate: str = "none") -> E:
    match approximate:
        case "none":
            return _half_of(x, op("erf", x * math.sqrt(0.5)))
        case "tanh":
            inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
            return _half_of(x, op("tanh", inner))
    raise ValueError(f"approximate={approximate!r}")


def _half_of(x: E, share: E) -> E:
    """x * (1 + share) / 2; a zero keeps the sign of x. Nothing overflows, and two operations are one fma."""
    return x * (share * 0.5 + 0.5)


def lerp(start: E, end: E, weight: E) -> E:
    """Computed from the nearer end, so that weights 0 and 1 give the ends exactly."""
    step = end - start
    near = start + weight * step
    return where(op("lt", op("abs", weight), 0.5), near, end - step * (lit(1, weight) - weight))


def prelu(x: E, weight: E) -> E:
    return where(op("gt", x, 0), x, x * weight)


def xlogy(x: E, y: E) -> E:
    return where(op("isnan", y), y, where(op("eq", x, 0), lit(0, x), x * op("log", y)))


def logit(x: E, eps: float | None = None) -> E:
    if eps is not None:
        x = where(op("lt", x, lit(eps, x)), lit(eps, x), where(op("gt", x, lit(1 - eps, x)), lit(1 - eps, x), x))
    return op("log", x / (lit(1, x) - x))


def hypot(a: E, b: E) -> E:
    """Scaled by the larger side, so that squares do not overflow; infinite even if the other side is NaN."""
    a, b = op("abs", a), op("abs", b)
    big, small = op("max", a, b), op("min", a, b)
    ratio = small / where(op("eq", big, 0), lit(1, big), big)
    any_infinite = op("or", is_infinite(a), is_infinite(b))
    return where(any_infinite, lit(math.inf, a), big * op("sqrt", ratio * ratio + 1.0))


def logaddexp(a: E, b: E) -> E:
    big = op("max", a, b)
    return where(is_infinite(big), big, big + op("log1p", op("exp", op("min", a, b) - big)))


def heaviside(x: E, at_zero: E) -> E:
    return where(op("eq", x, 0), at_zero, where(op("gt", x, 0), lit(1, x), lit(0, x)))


def nan_to_num(x: E, nan: float, posinf: float, neginf: float) -> E:
    if not x.dtype.is_float:
        return x
    finite = where(op("eq", x, math.inf), lit(posinf, x), where(op("eq", x, -math.inf), lit(neginf, x), x))
    return where(op("isnan", x), lit(nan, x), finite)


def signbit(x: E) -> E:
    return op("signbit", x) if x.dtype.is_float else op("lt", x, lit(0, x))


def is_finite(x: E) -> E:
    return op("lt", op("abs", x), math.inf) if x.dtype.is_float else const(True, boolean)


def is_infinite(x: E, which: str = "both") -> E:
    if not x.dtype.is_float:
        return const(False, boolean)
    return {"both": lambda: op("eq", op("abs", x), math.inf), "+": lambda: op("eq", x, math.inf),
            "-": lambda: op("eq", x, -math.inf)}[which]()  # fmt: skip


def round_decimals(x: E, decimals: int) -> E:
    """Round half to even at a decimal place."""
    if not x.dtype.is_float:
        if decimals:
            raise ValueError("integers are rounded to 0 decimals only")
        return x
    factor = lit(10.0 ** abs(decimals), x)
    if decimals >= 0:
        return op("round", x * factor) / factor if decimals else op("round", x)
    return op("round", x / factor) * factor


def as_bool(x: E) -> E:
    return cast(x, boolean)
