"""Values with error bounds, and scalar operations on them.

No derivative is needed: an operation is probed at its arguments plus and minus their errors. So any new row of `OPS`
has a bound at once, and floors, comparisons and conversions are bounded where they jump.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from compiler.interpret import scalar
from compiler.interpret.scalar import Array
from compiler.ir.dtype import DType, boolean, f32, f64
from compiler.ir.functions import CORRECTLY_ROUNDED, FUNCTIONS
from compiler.targets.accuracy import BY_EXP2, max_ulp

# How many standard deviations an error may be: the single constant of all tolerances.
LAMBDA = 6.0

# Largest relative rounding error. For f64 the reference also rounds, and so does the difference of two probes.
UNIT = {"f64": 2.0**-51, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
ETA = {
    "f64": 2.0**-1073,
    "f32": 2.0**-149,
    "bf16": 2.0**-133,
    "f16": 2.0**-24,
    "f8e4m3": 2.0**-9,
    "f8e5m2": 2.0**-16,
}  # the least positive value
LEAST_NORMAL = 2.0**-126  # of f32
SQUARABLE = 2.0**-500  # an f64 whose square is still a normal one
# Numbers from here on round to infinity or, in f8e4m3, to a number that is not close.
OVERFLOW = {
    "f64": 1.7976931348623157e308,
    "f32": (2 - 2.0**-24) * 2.0**127,
    "bf16": (2 - 2.0**-8) * 2.0**127,
    "f16": (2 - 2.0**-11) * 2.0**15,
    "f8e4m3": 464.0,
    "f8e5m2": (2 - 2.0**-3) * 2.0**15,
}

SHORT = 12  # bits of a literal that counts as exact

FORMULAS = 8  # factor on roundings for another formula with the same result

# Operations that never round, and operations that round correctly: a representable result is exact.
EXACT = (
    "neg", "abs", "sign", "min", "max", "where", "floor", "ceil", "trunc", "round", "tf32", "rem", "isnan", "signbit",
)  # fmt: skip
CORRECT = ("add", "sub", "mul", "div", "fma", "sqrt")
_PERIODIC = ("mod", "rem")
_POLES = ("div", "floordiv", "mod", "rem")  # at a divisor of zero
_AT_ZERO, _AT_WHOLE_NUMBERS = (0.0, math.inf, 0.0), (0.0, 1.0, math.inf)  # as `Function.poles`
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of the implementation that is judged: ulps by operation and type.

    `algebra` describes an evaluation in f64 throughout by any equivalent formula: its roundings differ, and so do its
    literals, which the program has as f32. `matmul` is the error of a product of two f32 matrices per term, in half
    ulps; `coarse` the error of a sum of products per product, relative to it. With `by_exp2`, exponentials are computed
    as powers of 2, and are zero below the least normal number. With `flushes`, matmuls may flush denormal factors and
    sums to zero. `of` describes the implementation for a kind of target.
    """

    ulps: Callable[[str, str], float] = max_ulp
    algebra: bool = False
    matmul: float = 0.0
    by_exp2: bool = False
    coarse: float = 0.0
    flushes: bool = False

    @staticmethod
    def of(
        kind: str, matmul: float = 0.0, by_exp2: bool = False, coarse: float = 0.0, flushes: bool = False
    ) -> Accuracy:
        return Accuracy(
            functools.partial(max_ulp, kind=kind), matmul=matmul, by_exp2=by_exp2, coarse=coarse, flushes=flushes
        )

    def computes(self, dtype: DType) -> DType:
        return f64 if self.algebra else dtype

    def half_ulps(self, name: str, dtype: DType) -> float:
        return 0.0 if name in EXACT else 2 * self.ulps(name, dtype.name) * (FORMULAS if self.algebra else 1)

    def rounds(self, n: int) -> int:
        """How many roundings one term of a sum of `n` may suffer, in any order of summation.

        Tensor cores truncate sums, twice the error of a rounding; but they add four or more terms at a time, so that
        fewer additions have it, and long sums are promoted in parts.
        """
        return max(0, n - 1) * (FORMULAS if self.algebra else 1)


@dataclass(frozen=True, eq=False)
class Bounded:
    """`v`, the value in exact arithmetic (floating types as f64), with bounds on the error of a computed value.

    `e1` is the worst case, to first order; infinite if nothing is known. `e2` is the variance of errors that are
    independent from element to element, `shared` the deviation of errors that elements have in common, such as that of
    a row's mean. All are None for exact values; otherwise none is.
    """

    v: Array
    e1: Array | None = None
    e2: Array | None = None
    shared: Array | None = None

    def map(self, how: Callable[[Array], Array]) -> Bounded:
        """A rearrangement, applied to all parts."""
        if self.e1 is None or self.e2 is None or self.shared is None:
            return Bounded(how(self.v))
        return Bounded(how(self.v), how(self.e1), how(self.e2), how(self.shared))

    def full(self, shape: tuple[int, ...]) -> Bounded:
        return self.map(lambda x: np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(shape))

    def common(self) -> Bounded:
        """The value with its error shared, for one element that is repeated."""
        if self.e1 is None:
            return self
        return Bounded(self.v, self.e1, np.zeros(()), deviation(self))


ZERO = np.zeros(())


def worst_error(x: Bounded) -> Array:
    return ZERO if x.e1 is None else x.e1


def variance(x: Bounded) -> Array:
    return ZERO if x.e2 is None else x.e2


def shared_deviation(x: Bounded) -> Array:
    return ZERO if x.shared is None else x.shared


Errors = tuple[Array, Array, Array]


def errors(x: Bounded) -> Errors:
    """Worst case, variance and shared deviation of every element."""
    shape = np.shape(x.v)
    return (
        np.broadcast_to(worst_error(x), shape),
        np.broadcast_to(variance(x), shape),
        np.broadcast_to(shared_deviation(x), shape),
    )


def undecided(step: Array | float) -> Array:
    """Return the variance of a jump of size `step` that rounding may or may not cause.

    Errors of either sign are equally likely, so at most half of them cross the jump; the mean square is at most half of
    `step` squared. Then a jump and other errors together stay within LAMBDA deviations.
    """
    return np.asarray(np.square(step) / 2)


def deviation(x: Bounded) -> Array:
    return np.asarray(np.sqrt(variance(x)) + shared_deviation(x))


def tolerance(x: Bounded) -> Array:
    """How far from `v` a correct result may be."""
    return np.broadcast_to(np.minimum(worst_error(x), LAMBDA * deviation(x)), np.shape(x.v))


def distance(a: Array, b: Array) -> Array:
    """|a - b|; 0 where both are NaN or the same infinity, infinite where only one is NaN."""
    a, b = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        d = np.asarray(a - b)
        np.abs(d, out=d)
    if not _any_nan(d):
        return d
    return np.where(np.isnan(d), np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.inf), d)


def _any_nan(x: Array) -> bool:
    """Whether any element is NaN, without an array of answers."""
    return bool(x.size) and bool(np.isnan(x.max()))


def make_bounded(v: Array, e1: Array, e2: Array, common: Array) -> Bounded:
    """A bounded value from its parts; NaN in these (infinity minus or times something) becomes infinity: unknown."""
    if not np.any(e1):
        return Bounded(v)
    tiny = (e1 > 0) & (e1 < SQUARABLE)
    if np.any(tiny):  # the variance underflows, and the worst case holds
        e2 = np.where(tiny, np.maximum(e2, SQUARABLE**2), e2)
    return Bounded(v, *map(_infinite_for_nan, (e1, e2, common)))


def _infinite_for_nan(e: Array) -> Array:
    return np.where(np.isnan(e), np.inf, e) if _any_nan(e) else e


def rounded(x: Bounded, dtype: DType, half_ulps: float, correctly: bool) -> Bounded:
    """`x`, computed by an operation that rounds to `dtype`; `correctly` if it keeps representable results."""
    if half_ulps == 0:
        return x
    with np.errstate(all="ignore"):
        size, finite = np.abs(x.v), np.isfinite(x.v)

        def rounding_error(most: Array) -> Array:
            """The rounding error of numbers of this size."""
            lost = half_ulps * np.maximum(UNIT[dtype.name] * most, ETA[dtype.name] / 2)
            return np.where(finite & (most != 0), lost, 0.0)

        # The computed value is rounded, not the exact one, and may be larger.
        largest, usual = rounding_error(size + worst_error(x)), rounding_error(size + tolerance(x))
        known = worst_error(x) == 0
        if correctly and known.any():
            is_exact = known & _is_representable(x.v, dtype)
            largest, usual = np.where(is_exact, 0.0, largest), np.where(is_exact, 0.0, usual)
        with_rounding = worst_error(x) + largest, variance(x) + usual**2 / 3, shared_deviation(x)
        # A correct rounding cannot turn a value below the least number that overflows into an infinity.
        overflow_errors = (worst_error(x), variance(x), shared_deviation(x)) if correctly else with_rounding
        return make_bounded(x.v, *_unknown_where(with_rounding, _may_overflow(x.v, overflow_errors, size, dtype)))


def _is_representable(v: Array, dtype: DType) -> Array:
    """Where an exact value is representable; for f64, the reference's own type, only integers below 2**31 count."""
    if dtype is f64:
        return np.asarray((v == np.rint(v)) & (np.abs(v) < 2.0**31))
    return np.asarray(scalar.cast(v, f64, dtype) == v)


def overflowing(v: Array, e1: Array, e2: Array, common: Array, size: Array, dtype: DType) -> Bounded:
    """The bounded value, with nothing known where numbers as large as `size` do not fit `dtype`."""
    return make_bounded(v, *_unknown_where((e1, e2, common), _may_overflow(v, (e1, e2, common), size, dtype)))


def _may_overflow(v: Array, e: Errors, size: Array, dtype: DType) -> Array:
    """Where numbers as large as `size`, with these errors, may not fit `dtype`."""
    with np.errstate(all="ignore"):
        reach = size + np.minimum(e[0], LAMBDA * (np.sqrt(e[1]) + e[2]))
        return np.asarray(np.isfinite(size) & ~np.isnan(v) & ~(reach < OVERFLOW[dtype.name]))


def _unknown_where(e: Errors, where: Array) -> Errors:
    """The errors, infinite at `where`."""
    if not where.any():
        return e
    return np.where(where, np.inf, e[0]), np.where(where, np.inf, e[1]), np.where(where, np.inf, e[2])


def operation(name: str, args: tuple[Bounded, ...], dtype: DType, accuracy: Accuracy) -> Bounded:
    """A row of `OPS` applied to `args`; the last argument has type `dtype`."""
    if name == "where":
        return choose(*args)
    with np.errstate(all="ignore"):
        v = scalar.apply(name, tuple(a.v for a in args))
        if any(a.e1 is not None for a in args):
            out = _compare(v, *args) if name in _COMPARISONS else _propagate(name, v, args)
        else:
            out = Bounded(v)
        if v.dtype.kind != "f":
            return out
        correctly = name in CORRECT and accuracy.ulps(name, dtype.name) <= CORRECTLY_ROUNDED
        out = rounded(out, accuracy.computes(dtype), accuracy.half_ulps(name, dtype), correctly)
        if accuracy.algebra and name in ("add", "sub"):
            out = _with_distributed_rounding(out, args, accuracy.half_ulps(name, dtype))
        if dtype is f32 and name == "exp" and accuracy.by_exp2:
            extra_ulps = accuracy.ulps("exp2_ftz", "f32") - accuracy.ulps("exp", "f32")
            return _with_exp2_errors(out, max(2 * extra_ulps, 0.0) + BY_EXP2 * np.abs(args[0].v))
        return _with_exp2_errors(out, ZERO) if dtype is f32 and name == "exp2_ftz" else out


def _with_distributed_rounding(x: Bounded, terms: tuple[Bounded, ...], half_ulps: float) -> Bounded:
    """A sum over which another formula may distribute a product: then each term's product rounds at its own size."""
    size = np.maximum(*(np.abs(a.v) for a in terms))
    exact = functools.reduce(np.logical_and, (_is_representable(a.v, f64) for a in terms), worst_error(x) == 0)
    rounding = np.where(~exact & np.isfinite(size), half_ulps * UNIT["f64"] * size, 0.0)
    return make_bounded(x.v, worst_error(x) + rounding, variance(x) + rounding**2 / 3, shared_deviation(x))


def _with_exp2_errors(x: Bounded, half_ulps: Array) -> Bounded:
    """An exponential with additional errors, and possibly zero where it is less than the least normal number."""
    error = half_ulps * UNIT["f32"] * x.v
    error = np.where(np.isfinite(error), error + np.where(x.v < LEAST_NORMAL, x.v, 0.0), 0.0)
    return make_bounded(x.v, worst_error(x) + error, variance(x) + error**2 / 3, shared_deviation(x))


def _propagate(name: str, v: Array, args: tuple[Bounded, ...]) -> Bounded:
    """The errors of the arguments propagated through an operation: the worst corner, and each deviation by itself."""
    sources = list({id(a): a for a in args if a.e1 is not None}.values())

    def largest_change(reach: Mapping[int, Array]) -> Array:
        """The largest change of the result if these arguments move by as much as that, each to either side."""
        ends = itertools.product(
            *([(s, m) for m in _interval_ends(s.v, reach[id(s)])] for s in sources if id(s) in reach)
        )
        out = ZERO
        for corner in ends:
            moved = {id(s): m for s, m in corner}
            values = tuple(moved.get(id(a), a.v) for a in args)
            out = np.maximum(out, distance(scalar.apply(name, values), v))
            if name in _PERIODIC:  # where the quotient steps, the remainder may be anything
                steps = scalar.apply("floordiv", values) != scalar.apply("floordiv", tuple(a.v for a in args))
                out = np.maximum(out, np.where(steps, np.abs(args[1].v.astype(np.float64)), 0.0))
        return out

    e1 = largest_change({id(s): worst_error(s) for s in sources})
    e2, common, separate_changes = ZERO, ZERO, ZERO
    for s in sources:
        reach = tolerance(s)
        change = largest_change({id(s): reach})
        if name in FUNCTIONS and (swing := FUNCTIONS[name].swing):  # probes a period apart would see no change
            change, e1 = np.minimum(reach, swing), np.maximum(e1, np.minimum(worst_error(s), swing))
        if _has_poles(name):  # likewise probes on both sides of a pole
            change = np.where(_spans_pole(name, s, reach, args), np.inf, change)
            e1 = np.where(_spans_pole(name, s, worst_error(s), args), np.inf, e1)
        slope = np.where(reach > 0, change / np.where(reach > 0, reach, 1.0), 0.0)
        slope = np.where(np.isinf(reach), np.inf, slope)
        e2 = e2 + np.where(variance(s) > 0, slope**2 * variance(s), 0.0)
        if np.any(shared_deviation(s)):
            common = common + np.where(shared_deviation(s) > 0, slope * shared_deviation(s), 0.0)
        separate_changes = separate_changes + change
        e1 = np.where(np.isinf(worst_error(s)), np.inf, e1)
    if len(sources) > 1:  # jumps that no argument reaches alone, and second-order terms
        joint_excess = largest_change({id(s): tolerance(s) for s in sources}) - separate_changes
        e2 = e2 + np.where(joint_excess > 0, (joint_excess / LAMBDA) ** 2, 0.0)
    return make_bounded(v, e1, e2, common)


def _has_poles(name: str) -> bool:
    return name in _POLES or name == "pow" or (name in FUNCTIONS and FUNCTIONS[name].poles is not None)


def _spans_pole(name: str, argument: Bounded, reach: Array, args: tuple[Bounded, ...]) -> Array:
    """Whether an argument of an operation with poles may be at one if it moves by as much as `reach`."""
    if name in _POLES:
        return _holds_pole(argument.v, reach, _AT_ZERO) & (argument is args[1])
    if name == "pow":  # infinite at a zero base; a power of a negative base is NaN between whole exponents
        base, exponent = args
        at_zero = argument is base and (_least(exponent) < 0) & _holds_pole(base.v, reach, _AT_ZERO)
        at_whole = argument is exponent and (_least(base) < 0) & _holds_pole(exponent.v, reach, _AT_WHOLE_NUMBERS)
        return np.asarray(at_zero | at_whole)
    poles = FUNCTIONS[name].poles
    assert poles is not None, name
    return _holds_pole(argument.v, reach, poles)


def _least(x: Bounded) -> Array:
    return np.asarray(x.v - worst_error(x))


def _holds_pole(v: Array, reach: Array, poles: tuple[float, float, float]) -> Array:
    """Whether the interval around a value, which is not the value alone, contains a pole."""
    one, distance, last = poles
    low = v.astype(np.float64) - reach
    next_pole = one + (np.ceil((low - one) / distance) * distance if math.isfinite(distance) else 0.0)
    return np.asarray((reach > 0) & (low <= next_pole) & (next_pole <= np.minimum(v + reach, last)))


def _interval_ends(v: Array, by: Array) -> list[Array]:
    """The ends of a value's interval."""
    if v.dtype.kind == "b":
        return [v ^ (by > 0)]
    if v.dtype.kind != "f":
        whole = np.ceil(np.minimum(by, 2.0**31)).astype(v.dtype)
        return [v + whole, v - whole]
    return [v + by, v - by]


def _compare(v: Array, a: Bounded, b: Bounded) -> Bounded:
    """A comparison; undecided where its arguments are no further apart than their errors."""
    difference = np.abs(a.v.astype(np.float64) - b.v.astype(np.float64))
    margin, usual = (
        worst_error(a) + worst_error(b),
        LAMBDA * (np.sqrt(variance(a) + variance(b)) + shared_deviation(a) + shared_deviation(b)),
    )
    if a is b:
        margin = np.where(np.isinf(margin), margin, 0.0)
    e1 = np.where((margin > 0) & ((difference <= margin) | np.isinf(margin)), 1.0, 0.0)
    e2 = np.where((e1 > 0) & ((difference <= usual) | np.isinf(margin)), undecided(1.0), 0.0)
    return make_bounded(v, e1, e2, ZERO)


def choose(cond: Bounded, then: Bounded, other: Bounded) -> Bounded:
    """`then` where `cond` holds, else `other`; either where that is undecided."""
    v = np.where(cond.v, then.v, other.v)
    if cond.e1 is None and then.e1 is None and other.e1 is None:
        return Bounded(v)
    e1, e2, common = (np.where(cond.v, f(then), f(other)) for f in (worst_error, variance, shared_deviation))
    if cond.e1 is not None:
        step = distance(then.v, other.v)
        may_differ, usually_differs = worst_error(cond) > 0, deviation(cond) > 0
        e1 = np.where(may_differ, np.maximum(worst_error(then), worst_error(other)) + step, e1)
        e2 = np.where(usually_differs, np.maximum(variance(then), variance(other)) + undecided(step), e2)
        common = np.where(usually_differs, np.maximum(shared_deviation(then), shared_deviation(other)), common)
    return make_bounded(v, e1, e2, common)


def converted(x: Bounded, source: DType, target: DType, accuracy: Accuracy) -> Bounded:
    """A `Cast`."""
    if target is boolean:
        return operation("ne", (x, Bounded(np.zeros((), x.v.dtype))), source, accuracy)
    v = scalar.cast(x.v, source, target, exact=True)
    if target.is_float:
        out = Bounded(v, x.e1, x.e2, x.shared)
        widens = source.is_float and source.bits < target.bits
        is_exact = widens or source is boolean or (source.is_float and accuracy.algebra)
        return out if is_exact else rounded(out, accuracy.computes(target), 1.0, True)
    if x.e1 is None or source is boolean:
        return Bounded(v, x.e1, x.e2, x.shared)
    ends = [distance(scalar.cast(m, source, target, exact=True), v) for m in _interval_ends(x.v, worst_error(x))]
    usual = [distance(scalar.cast(m, source, target, exact=True), v) for m in _interval_ends(x.v, tolerance(x))]
    e1 = np.maximum.reduce(ends) + np.where(np.isinf(worst_error(x)), np.inf, 0.0)
    return make_bounded(
        v, e1, (np.maximum.reduce(usual) / LAMBDA) ** 2 + np.where(np.isinf(worst_error(x)), np.inf, 0.0), ZERO
    )


def constant(value: bool | int | float, dtype: DType) -> Bounded:
    """A literal; one of f32 counts as rounded, unless it is the largest number, a 16-bit integer, or short.

    Of all numbers, one in 4096 rounds to one that is short enough to count as exact.
    """
    v = scalar.constant(value, dtype, exact=True)
    if dtype.name != "f32" or not abs(value) < np.finfo(np.float32).max or scalar.round_bf16(v.astype(np.float32)) == v:
        return Bounded(v)
    mantissa = abs(np.frexp(v)[0]) * 2.0**SHORT
    if mantissa == np.rint(mantissa) or (v == np.rint(v) and abs(v) <= 2.0**16):
        return Bounded(v)
    rounding = np.asarray(UNIT["f32"] * np.abs(v))
    return Bounded(v, rounding, np.zeros(()), rounding / np.sqrt(3.0))
