"""Scalar operations of `expr.OPS` as NumPy functions.

Arrays hold bf16 and 8-bit floats as the float32 that equals them; other types have their own NumPy type. Functions of
f32 are computed in f64 and rounded once: within 0.5001 ulp. Where C++ leaves a result undefined, this file defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import InvalidData
from compiler.ir import float8
from compiler.ir.dtype import EIGHTHS, DType, bf16, boolean
from compiler.ir.expr import COMBINE, identity
from compiler.ir.functions import FUNCTIONS as ROWS

Array = npt.NDArray[Any]
Function = Callable[..., Array]

_STORAGE: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "bf16": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "i64": np.dtype(np.int64), "i32": np.dtype(np.int32), "i16": np.dtype(np.int16), "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8), "bool": np.dtype(np.bool_), "f8e4m3": np.dtype(np.float32),
    "f8e5m2": np.dtype(np.float32),
}  # fmt: skip
_F64: np.dtype[Any] = np.dtype(np.float64)


def storage(dtype: DType, exact: bool = False) -> np.dtype[Any]:
    """The NumPy type that holds values of `dtype`; with `exact`, every floating type is held as float64."""
    return _F64 if exact and dtype.is_float else _STORAGE[dtype.name]


def constant(value: bool | int | float, dtype: DType, exact: bool = False) -> Array:
    return np.asarray(value, storage(dtype, exact))


def _through_f64(f: Callable[..., Array]) -> Function:
    def g(*args: Array) -> Array:
        return np.asarray(f(*(np.asarray(a, np.float64) for a in args))).astype(args[0].dtype, copy=False)

    return g


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of one Python float, applied to an array."""

    def g(x: Array) -> Array:
        return np.fromiter(map(f, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)

    return g


def _of_floats(name: str) -> Function:
    """The function `name` of `functions.py` on arrays of one floating type, by its row's `meaning` or else NumPy's."""
    meaning = ROWS[name].meaning
    return _through_f64(_elementwise(meaning) if meaning is not None else getattr(np, name))


def _rsqrt(x: Array) -> Array:
    return np.divide(1.0, np.sqrt(x))


def power(x: Array, y: Array) -> Array:
    """As in C: NumPy takes the square root if a whole array has the exponent 1/2, but (-inf)**0.5 is inf."""
    made = np.power(x, y)
    return np.where(y == 0.5, np.where(np.isneginf(x), np.inf, made + 0.0), made)


def _sign(x: Array) -> Array:
    """-1, 0 or 1; 0 for NaN and -0, as in torch."""
    return np.asarray((x > 0).astype(np.int8) - (x < 0).astype(np.int8)).astype(x.dtype)


def _mod(a: Array, b: Array) -> Array:
    """The remainder with the sign of `b`; a float zero keeps the sign of `a`, as in torch; integer x mod 0 is 0."""
    if a.dtype.kind != "f":
        return np.asarray(np.remainder(a, b))
    r = np.fmod(a, b)
    return np.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


def _truncdiv(a: Array, b: Array) -> Array:
    down = np.floor_divide(a, b)
    inexact = (np.fmod(a, b) != 0) & ((a < 0) != (b < 0))
    return np.asarray(down + inexact).astype(a.dtype)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once (in f64 except for rare ties), by splitting the product into two floats without error."""
    if a.dtype != np.float64:
        return np.asarray(np.float64(a) * np.float64(b) + np.float64(c)).astype(a.dtype)
    plain = a * b + c
    high = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    low = ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2
    total = high + c
    back = total - high
    lost = (high - (total - back)) + (c - back)
    careful = total + (lost + low)
    return np.where(np.isfinite(careful), careful, plain)


def _tf32(x: Array) -> Array:
    """`x` rounded to 10 bits of fraction, ties away from zero."""
    bits = np.dtype(f"u{x.dtype.itemsize}")
    unit, half = (bits.type(2**n) for n in ((13, 12) if bits.itemsize == 4 else (42, 41)))
    kept: Array = (np.atleast_1d(np.ascontiguousarray(x)).view(bits) + half) // unit * unit
    return np.where(np.isnan(x), x, kept.view(x.dtype).reshape(np.shape(x)))


def _exp2_ftz(x: Array) -> Array:
    y = FUNCTIONS["exp2"](x)
    return np.where(y < np.finfo(x.dtype).tiny, x.dtype.type(0), y)


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0  # 2**27 + 1 splits 53 bits into 26 and 27
    high = scaled - (scaled - x)
    return high, x - high


def _require(cond: Array, x: Array) -> Array:
    if not np.all(cond):
        raise InvalidData
    return x


# fmt: off
FUNCTIONS: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    # integers: x // 0 == x % 0 == 0, least // -1 wraps
    "floordiv": np.floor_divide, "mod": _mod, "truncdiv": _truncdiv, "rem": np.fmod, "gcd": np.gcd,
    "neg": np.negative, "abs": np.abs, "sign": _sign, "min": np.minimum, "max": np.maximum,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    # a shift by at least the width, or by a negative count, gives 0 (right shift of a negative number: -1)
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shl": np.left_shift, "shr": np.right_shift,
    "where": np.where, "require": _require, "isnan": np.isnan, "signbit": np.signbit,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "tf32": _tf32,
    "sqrt": np.sqrt, "fma": _fma,
    **{name: _of_floats(name) for name, row in ROWS.items() if row.library},
    "rsqrt": _through_f64(_rsqrt), "pow": _through_f64(power), "exp2_ftz": _exp2_ftz,
}
# fmt: on


def apply(name: str, args: tuple[Array, ...]) -> Array:
    """`OPS[name]` applied to arrays of one type, broadcast."""
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[name](*args))


def cast(x: Array, source: DType, target: DType, exact: bool = False) -> Array:
    """`x` converted; with `exact`, no floating type rounds."""
    if target is boolean:
        return np.asarray(x != 0)
    if target.is_float:
        if exact:
            return x.astype(np.float64, copy=False)
        with np.errstate(all="ignore"):
            if target.bits <= 16 and source is not target:
                # f64 and integers are converted to 16 bits through f32, as in torch
                x = x.astype(np.float32, copy=False)
            return rounded(x, target).astype(storage(target), copy=False)
    return _float_to_integer(x, target) if source.is_float else x.astype(storage(target), copy=False)


def rounded(x: Array, dtype: DType) -> Array:
    """`x` rounded to `dtype`, if NumPy has no such type."""
    if dtype in EIGHTHS:
        return from_memory(to_memory(x, dtype), dtype)
    return round_bf16(x) if dtype is bf16 else x


def round_bf16(x: Array) -> Array:
    """float32 rounded to the nearest bf16 value, ties to even; NaN stays NaN."""
    bits = np.atleast_1d(np.ascontiguousarray(x, np.float32)).view(np.uint32)
    kept = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, kept.view(np.float32).reshape(np.shape(x)))


def _float_to_integer(x: Array, target: DType) -> Array:
    """Truncate as on x86: NaN and out-of-range values give the least value; types below 32 bits wrap an i32."""
    wide = np.int64 if target.bits == 64 else np.int32
    limit = 2.0 ** (target.bits - 1 if target.bits >= 32 else 31)
    whole = np.trunc(x.astype(np.float64))
    fits = (whole >= -limit) & (whole < limit)
    return np.where(fits, whole, -limit).astype(wide).astype(storage(target))


_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip
assert set(_REDUCTIONS) == set(COMBINE)


def reduction(name: str, dtype: np.dtype[Any]) -> np.ufunc:
    """The ufunc that combines partial results; for bool the logical one, because others do not stay bool."""
    if dtype.kind == "b":
        return {"and": np.logical_and, "or": np.logical_or, "min": np.logical_and, "max": np.logical_or}[name]
    return _REDUCTIONS[name]


def order(how: str, x: Array, axis: int) -> Array:
    """Stable argsort along an axis; NaN is the largest."""
    if how == "ascending":
        return np.argsort(x, axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis))


def reduce(name: str, x: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    """`x`, of type `dtype`, reduced over `axes` in its own type; an empty range gives the identity."""
    start = identity(name, dtype).value
    with np.errstate(all="ignore"):
        return np.asarray(reduction(name, x.dtype).reduce(x, axis=axes, dtype=x.dtype, initial=start))


def accumulate(name: str, x: Array, axis: int) -> Array:
    """The running reduction along `axis`, first to last, in the type of `x`."""
    with np.errstate(all="ignore"):
        return np.asarray(reduction(name, x.dtype).accumulate(x, axis=axis, dtype=x.dtype))


def combine_at(name: str, target: Array, index: tuple[Array, ...], value: Array) -> None:
    """`target[index] = value` in order, combined with the old value unless `name` is "set"; the last one set stays."""
    if not index:  # a scalar
        target, index = target.reshape(1), (np.zeros(value.shape, np.intp),)
    with np.errstate(all="ignore"):
        if name == "set":
            target[index] = value
        else:
            reduction(name, target.dtype).at(target, index, value)


def memory(dtype: DType) -> np.dtype[Any]:
    """The NumPy type with the bits of `dtype` in memory; unsigned integers if NumPy has no such type."""
    return np.dtype({"bf16": np.uint16, "f8e4m3": np.uint8, "f8e5m2": np.uint8}.get(dtype.name, _STORAGE[dtype.name]))


def to_memory(x: Array, dtype: DType) -> Array:
    if dtype in EIGHTHS:
        return _eight_bits(x, float8.FORMATS[dtype.name])
    if dtype is not bf16:
        return x.astype(memory(dtype), copy=False)
    shape = np.shape(x)
    bits = np.atleast_1d(np.ascontiguousarray(round_bf16(x), np.float32)).view(np.uint32)
    quiet = np.isnan(x) * np.uint16(0x40)  # a NaN's set bits may all be among those that are dropped
    return (bits >> np.uint32(16)).astype(np.uint16).reshape(shape) | quiet


def _eight_bits(x: Array, form: float8.Format) -> Array:
    """float8.bits_of for float32 arrays: whole steps below the next power of two, ties to even."""
    x = np.asarray(x, np.float32)
    size = np.abs(x)
    finite = np.where(np.isfinite(size), size, 0)
    exponent = np.maximum(np.frexp(np.maximum(finite, 2.0**-100))[1] - 1, form.least)
    steps = np.rint(np.ldexp(finite, form.fraction - exponent)).astype(np.int64)
    bits = np.minimum(steps + ((exponent.astype(np.int64) - form.least) << form.fraction), form.over)
    bits = np.where(np.isnan(x), float8.NAN, np.where(np.isinf(x), form.over, bits))
    return np.asarray(bits | np.signbit(x) * 0x80).astype(np.uint8)


def from_memory(x: Array, dtype: DType) -> Array:
    if dtype in EIGHTHS:
        return np.asarray(float8.values(dtype.name), np.float32)[x]
    if dtype is not bf16:
        return x
    shape = np.shape(x)
    return (np.atleast_1d(x).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
