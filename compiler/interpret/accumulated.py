"""Error bounds of sums, products, extremes, sorts, scans and scatters of bounded values.

A sum of n terms rounds n partial sums. The worst case is n u sum |x|, in any order. The variance is n times that of
rounding one partial sum of root mean square size, which is measured on the data. The rounding error that a term adds
between two powers of two depends on the term alone, so equal terms have equal errors: k of them count as k squared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.interpret import scalar
from compiler.interpret.bounded import (
    ETA,
    LAMBDA,
    OVERFLOW,
    UNIT,
    ZERO,
    Accuracy,
    Bounded,
    Errors,
    deviation,
    distance,
    errors,
    make_bounded,
    overflowing,
    shared_deviation,
    tolerance,
    undecided,
    worst_error,
)
from compiler.interpret.scalar import Array
from compiler.ir.dtype import DType, f32, f64
from compiler.ir.expr import COMBINE

BLOCKS = 32  # partial sums that are examined
LANES = 16  # accumulators of a vectorised sum, whose partial sums may be much larger than those of a sequential sum
LEAST_NORMAL = 2.0**-126  # of f32, and of bf16
ORDER = 4.0  # factor on the variance that allows for other orders
_PICK = {"max": "max", "or": "max", "min": "min", "and": "min"}


def reduce(op: str, x: Bounded, axes: tuple[int, ...], dtype: DType, accuracy: Accuracy) -> Bounded:
    """`x` reduced over its last dimensions `axes`."""
    if x.e1 is None and (not dtype.is_float or op in _PICK):
        return Bounded(scalar.reduce(op, x.v, axes, _reference_type(dtype)))
    free = x.v.shape[: x.v.ndim - len(axes)]
    terms = x.map(lambda a: np.broadcast_to(a, x.v.shape).reshape((*free, math.prod(x.v.shape[len(free) :]))))
    v = scalar.reduce(op, terms.v, (len(free),), _reference_type(dtype))
    with np.errstate(all="ignore"):
        match op:
            case "sum":
                return _sum(v, terms, dtype, accuracy)
            case "prod":
                size = np.abs(terms.v.astype(np.float64))
                propagated = _product_errors(size, errors(terms), lambda f, e: np.asarray(f.reduce(e, -1)))
                reach = _product_range(size, lambda f, e: np.asarray(f.reduce(e, -1)))
                count = accuracy.rounds(size.shape[-1])
                return _product(v, propagated, reach, count, _are_integers(accuracy, x.v), dtype, accuracy)
        return _extreme(op, v, terms, lambda e: scalar.reduce(_PICK[op], e, (len(free),), f64))


def _reference_type(dtype: DType) -> DType:
    return f64 if dtype.is_float else dtype


def _are_integers(accuracy: Accuracy, *terms: Array) -> bool:
    """Whether all finite elements are integers, so that sums are, too; not for another formula, which may divide."""
    return not accuracy.algebra and all(
        _holds_everywhere(lambda part: (part == np.rint(part)) | ~np.isfinite(part), x) for x in terms
    )


def _holds_everywhere(holds: Callable[[Array], Array], x: Array) -> bool:
    """Whether something holds for every element; the first few elements decide for most arrays."""
    return bool(holds(x[(slice(2),) * x.ndim]).all()) and bool(holds(x).all())


def _finite(x: Array) -> Array:
    """The array with 0 for elements that are not finite: an infinity is not rounded."""
    if not x.size or (np.isfinite(x.min()) and np.isfinite(x.max())):
        return x
    return np.where(np.isfinite(x), x, 0.0)


def _rounded_sum(
    v: Array,
    propagated: Errors,
    absolute: Array,
    mean_square: Array,
    rounds: int | Array,
    all_integers: bool,
    dtype: DType,
) -> Bounded:
    """A sum of terms with the errors `propagated`, after `rounds` roundings of partial sums of this mean square."""
    u = UNIT[dtype.name]
    e1, e2, common = _without_lost_values(v, propagated)
    are_exact = (absolute <= 1 / u) & (e1 == 0) & all_integers  # integers, all representable in the type
    exact = ~np.isfinite(v) | are_exact
    e1 = e1 + np.where(exact, 0.0, rounds * u * absolute)
    e2 = e2 + np.where(exact, 0.0, ORDER * rounds * u * u * mean_square / 3)
    # Of finite terms: an infinite sum of these overflows f64.
    return overflowing(v, e1, e2, common, np.minimum(absolute, np.finfo(np.float64).max), dtype)


def _without_lost_values(v: Array, e: Errors) -> Errors:
    """The errors, without finite errors where the value is certainly infinite or NaN."""
    lost = ~np.isfinite(v) & ~np.isinf(e[0])
    return (np.where(lost, 0.0, e[0]), np.where(lost, 0.0, e[1]), np.where(lost, 0.0, e[2])) if lost.any() else e


def _sum(v: Array, x: Bounded, dtype: DType, accuracy: Accuracy) -> Bounded:
    """The sum over the last dimension."""
    n = x.v.shape[-1]
    e1, e2, common = _errors_in_sum(x, dtype)
    propagated = e1.sum(-1), e2.sum(-1), common.sum(-1)
    if n == 0 or not dtype.is_float:
        return make_bounded(v, *propagated)
    terms = _finite(x.v)
    mean_square = (terms**2).sum(-1) / min(BLOCKS, n) + np.maximum(
        _mean_square_of_partial_sums(terms, 1), _mean_square_of_partial_sums(terms, LANES)
    )
    multiplicity, computed_type = _multiplicity_terms(terms, _row_numbers(terms)).mean(-1), accuracy.computes(dtype)
    absolute, all_integers = np.abs(terms).sum(-1), _are_integers(accuracy, x.v)
    return _rounded_sum(
        v, propagated, absolute, multiplicity * mean_square, accuracy.rounds(n), all_integers, computed_type
    )


def _errors_in_sum(x: Bounded, dtype: DType) -> Errors:
    """The errors of terms. An integer's error is a jump, and one rounding may decide many: they do not cancel."""
    if dtype.is_float:
        return errors(x)
    shape = x.v.shape
    return np.broadcast_to(worst_error(x), shape), np.zeros(shape), np.broadcast_to(deviation(x), shape)


def _row_numbers(x: Array) -> Array:
    """The row number of each element."""
    return np.broadcast_to(np.arange(math.prod(x.shape[:-1])).reshape((*x.shape[:-1], 1)), x.shape)


def _multiplicity_terms(x: Array, places: Array) -> Array:
    """Terms of the sum of squared multiplicities of values per place: 2 k - 1 for a value's k-th occurrence."""
    order = np.lexsort((x.reshape(-1), places.reshape(-1)))
    here, value = places.reshape(-1)[order], x.reshape(-1)[order]
    number = np.arange(x.size)
    begins = np.ones(x.size, np.bool_)
    begins[1:] = (here[1:] != here[:-1]) | (value[1:] != value[:-1])
    out = np.empty(x.size)
    out[order] = 2.0 * (number - np.maximum.accumulate(np.where(begins, number, 0))) + 1
    return out.reshape(x.shape)


def _mean_square_of_partial_sums(x: Array, lanes: int) -> Array:
    """Mean square of the running sums of blocks, with `lanes` accumulators that take turns."""
    n = x.shape[-1]
    if lanes > 1 and n <= lanes:
        return ZERO
    blocks = min(BLOCKS, -(-n // lanes))
    size = -(-n // (lanes * blocks))
    padded = np.zeros((*x.shape[:-1], blocks * size * lanes))
    padded[..., :n] = x
    running = padded.reshape((*x.shape[:-1], blocks, size, lanes)).sum(-2).cumsum(-2)
    return np.asarray((running**2).mean((-1, -2)))


def _product_errors(size: Array, e: Errors, along: Callable[[np.ufunc, Array], Array]) -> Errors:
    """How much a product of independent factors changes when each has an error."""

    def more(size: Array, e: Array) -> Array:
        whole = along(np.multiply, size)
        # At least by the sum of relative errors: added to a factor, one below 2**-53 would be lost.
        least = whole * along(np.add, np.where(size > 0, e / size, 0.0))
        all_terms = np.maximum(along(np.multiply, size + e) - whole, 0.0)
        return np.asarray(np.where(np.isnan(least), all_terms, np.maximum(all_terms, least)))

    return more(size, e[0]), more(size**2, e[1]), more(size, e[2])


@dataclass(frozen=True)
class _ProductRange:
    """Ranges of partial products of the finite, nonzero factors, and whether all factors are finite.

    Even in f64, `largest` may be infinite and `least` zero.
    """

    largest: Array
    least: Array
    finite: Array


def _product_range(size: Array, along: Callable[[np.ufunc, Array], Array]) -> _ProductRange:
    ordinary = np.isfinite(size) & (size > 0)
    return _ProductRange(
        along(np.multiply, np.where(ordinary, np.maximum(size, 1.0), 1.0)),
        along(np.multiply, np.where(ordinary, np.minimum(size, 1.0), 1.0)),
        along(np.logical_and, np.isfinite(size)),
    )


def _product(
    v: Array,
    propagated: Errors,
    reach: _ProductRange,
    rounds: int | Array,
    all_integers: bool,
    dtype: DType,
    accuracy: Accuracy,
) -> Bounded:
    """A product in any order: on the way it may overflow or underflow, even if other factors bring it back."""
    if not dtype.is_float:
        return make_bounded(v, *propagated)
    computed_type = accuracy.computes(dtype)
    u, eta = UNIT[computed_type.name], ETA[computed_type.name]
    e1, e2, common = _without_lost_values(v, propagated)
    exact = (reach.largest <= 1 / u) & (e1 == 0) & all_integers
    underflow = np.where(reach.least < eta / u, reach.largest, 1.0) * eta  # denormal partial products lose digits
    rounding = np.where(exact | ~np.isfinite(v), 0.0, rounds * (u * np.abs(v) + underflow))
    is_unknown = np.where(
        reach.finite, ~(reach.largest < OVERFLOW[computed_type.name]), np.isinf(v) & (reach.least <= eta)
    )
    e = tuple(np.where(is_unknown, np.inf, x) for x in (e1 + rounding, e2 + rounding**2 / 3, common))
    return make_bounded(v, *e)


def _extreme(op: str, v: Array, x: Bounded, pick: Callable[[Array], Array]) -> Bounded:
    """An extreme lies between those of the least and of the greatest values that the terms may have."""
    if op in ("and", "or") and x.v.dtype.kind != "b":
        unknown = np.full(v.shape, np.inf)
        return make_bounded(v, unknown, unknown, unknown)
    values = x.v.astype(np.float64)
    centre = pick(values)

    def reach(by: Array) -> Array:
        return np.maximum(distance(pick(values + by), centre), distance(pick(values - by), centre))

    usual = reach(tolerance(x)) / LAMBDA
    return (
        make_bounded(v, reach(worst_error(x)), ZERO, usual)
        if np.any(shared_deviation(x))
        else make_bounded(v, reach(worst_error(x)), usual**2, ZERO)
    )


@dataclass(frozen=True)
class Moments:
    """Moments of matmuls: of the values, absolute values and squares, and the mean square of the partial sums as
    `BLOCKS` blocks of the summed axis are added one by one."""

    total: Any  # arrays
    absolute: Any
    squares: Any
    partial: Any


def moments(x: Any, y: Any) -> Moments:
    """Moments of batches of matmuls, in the library of the arrays: NumPy, or torch on a device."""
    k = x.shape[-1]
    blocks = _block_count(k)
    total = partial = 0.0
    for block in range(blocks):
        part = slice(block * k // blocks, (block + 1) * k // blocks)
        total = total + x[..., part] @ y[..., part, :]
        partial = partial + total**2 / blocks
    return Moments(total, abs(x) @ abs(y), (x * x) @ (y * y), partial)


def _block_count(k: int) -> int:
    """How many blocks a summed axis of `k` elements is divided into."""
    return max(1, min(BLOCKS, k))


def contract(
    a: Bounded, b: Bounded, dtype: DType, accuracy: Accuracy, how: Callable[[Array, Array], Moments] = moments
) -> Bounded:
    """Batches of matmuls; `how` computes their moments."""
    with np.errstate(all="ignore"):
        if not dtype.is_float and a.e1 is None and b.e1 is None:
            return Bounded(np.asarray(np.matmul(a.v, b.v)))
        x, y = (_finite(f.v.astype(np.float64, copy=False)) for f in (a, b))
        sums = how(x, y)
        v = sums.total if x is a.v and y is b.v else np.asarray(np.matmul(a.v, b.v))
        propagated = _contract_errors(a, b, x, y)
        if not dtype.is_float:
            return make_bounded(v, *propagated)
        k = x.shape[-1]
        mean_square = sums.squares / _block_count(k) + sums.partial
        computed_type = accuracy.computes(dtype)
        rounds = accuracy.rounds(k) + 1
        split = accuracy.matmul * UNIT[dtype.name] if accuracy.matmul and _needs_several_tf32(x, y) else 0.0
        if (split or accuracy.coarse) and dtype is f32 and not accuracy.algebra:
            coarse_error = split + accuracy.coarse
            e1, e2, common = propagated
            propagated = e1 + coarse_error * sums.absolute, e2 + coarse_error**2 / 3 * sums.squares, common
        all_integers = _are_integers(accuracy, a.v, b.v)
        if accuracy.flushes and dtype is f32 and not all_integers:
            flushed = _flush_errors(np.abs(x), np.abs(y))
            propagated = propagated[0] + flushed, propagated[1], propagated[2] + flushed
        return _rounded_sum(v, propagated, sums.absolute, mean_square, rounds, all_integers, computed_type)


def _flush_errors(x: Array, y: Array) -> Array:
    """Error of products of these sizes if denormals are flushed to zero: of factors, and of each partial sum."""
    lost = np.asarray(2 * x.shape[-1] * LEAST_NORMAL)
    small = [np.where(f < LEAST_NORMAL, f, 0.0) for f in (x, y)]
    for left, right in ((small[0], y), (x, small[1])):
        lost = lost + left @ right if left.any() and right.any() else lost
    return lost


def _needs_several_tf32(*factors: Array) -> bool:
    """Whether any element needs more bits than one tf32 number has, so that its product is made of several."""
    return not all(
        _holds_everywhere(lambda part: scalar.apply("tf32", (part.astype(np.float32),)) == part, x) for x in factors
    )


def _contract_errors(a: Bounded, b: Bounded, x: Array, y: Array) -> Errors:
    """The products' errors from their factors' errors: each error times the other factor, and times its error."""
    if a.e1 is None and b.e1 is None:
        return ZERO, ZERO, ZERO
    sizes = np.abs(x), np.abs(y)
    factors = (sizes, (x * x, y * y), sizes)
    e1, e2, common = (
        _error_terms(m, n, e, f) for (m, n), e, f in zip(factors, _nonzero_errors(a), _nonzero_errors(b), strict=True)
    )
    return e1, e2, common


def _nonzero_errors(x: Bounded) -> tuple[Array | None, ...]:
    """Like `errors`, but None for those that are zero everywhere."""
    return tuple(e if np.any(e) else None for e in errors(x))


def _error_terms(x: Array, y: Array, a: Array | None, b: Array | None) -> Array:
    parts = [_dot(p, q) for p, q in ((a, y), (x, b), (a, b)) if p is not None and q is not None]
    return np.asarray(sum(parts[1:], start=parts[0])) if parts else ZERO


def _dot(a: Array, b: Array) -> Array:
    """A matmul of errors; infinity times zero is an unknown error, infinity."""
    out = np.matmul(a, b)
    return np.where(np.isnan(out), np.inf, out)


def scan(op: str, x: Bounded, axis: int, dtype: DType, accuracy: Accuracy) -> Bounded:
    """The running reduction along `axis`."""
    v = scalar.accumulate(op, x.v, axis)
    if x.e1 is None and (not dtype.is_float or op in _PICK):
        return Bounded(v)
    computed_type = accuracy.computes(dtype)
    rounds = np.asarray([accuracy.rounds(n + 1) for n in range(v.shape[axis])])
    rounds = rounds.reshape([-1 if d == axis else 1 for d in range(v.ndim)])
    with np.errstate(all="ignore"):
        match op:
            case "sum":
                e1, e2, common = _errors_in_sum(x, dtype)
                propagated = e1.cumsum(axis), e2.cumsum(axis), common.cumsum(axis)
                if not dtype.is_float:
                    return make_bounded(v, *propagated)
                terms = _finite(x.v)
                squares = (terms.cumsum(axis) ** 2 + terms**2).cumsum(axis) / np.maximum(rounds, 1)
                along = np.moveaxis(terms, axis, -1)
                multiplicity = np.moveaxis(_multiplicity_terms(along, _row_numbers(along)), -1, axis).cumsum(axis)
                squares = squares * multiplicity / np.ones(terms.shape).cumsum(axis)
                return _rounded_sum(
                    v,
                    propagated,
                    np.abs(terms).cumsum(axis),
                    squares,
                    rounds,
                    _are_integers(accuracy, x.v),
                    computed_type,
                )
            case "prod":
                size = np.abs(x.v.astype(np.float64))
                propagated = _product_errors(size, errors(x), lambda f, e: np.asarray(f.accumulate(e, axis)))
                reach = _product_range(size, lambda f, e: np.asarray(f.accumulate(e, axis)))
                return _product(v, propagated, reach, rounds, _are_integers(accuracy, x.v), dtype, accuracy)
        return _extreme(op, v, x, lambda e: scalar.accumulate(_PICK[op], e, axis))


def order(how: str, x: Bounded, axis: int) -> Bounded:
    """Argsort along an axis; the error covers all elements that cannot be told apart, pairwise, from the one chosen."""
    places = scalar.order(how, x.v, axis)
    if x.e1 is None:
        return Bounded(places)
    last = np.moveaxis(places, axis, -1)
    values, reach = (
        np.take_along_axis(np.moveaxis(a, axis, -1).astype(np.float64), last, -1)
        for a in (x.v, np.broadcast_to(tolerance(x), x.v.shape))
    )
    with np.errstate(all="ignore"):
        margin = reach[..., 1:] + reach[..., :-1]
        close = (margin > 0) & ((np.abs(values[..., 1:] - values[..., :-1]) <= margin) | np.isinf(margin))
    first = np.concatenate([np.ones((*last.shape[:-1], 1), np.bool_), ~close], -1)
    starts = np.flatnonzero(first)
    which = np.cumsum(first) - 1
    least, most = (u.reduceat(last.reshape(-1), starts)[which].reshape(last.shape) for u in (np.minimum, np.maximum))
    e1 = np.moveaxis(np.maximum(most - last, last - least).astype(np.float64), -1, axis)
    return make_bounded(places, e1, undecided(e1), ZERO)


def scatter(
    op: str, base: Bounded, index: tuple[Array, ...], value: Bounded, dtype: DType, accuracy: Accuracy
) -> Bounded:
    """`base` with `value` set at `index`, or combined with what is there."""

    def at(how: str, target: Array, update: Array) -> Array:
        out = np.array(target)
        scalar.combine_at(how, out, index, update)
        return out

    v = at(op, base.v, value.v)
    if base.e1 is None and value.e1 is None and (not dtype.is_float or op == "set" or op in _PICK):
        return Bounded(v)
    before, update = (_errors_in_sum(x, dtype) if op == "sum" else errors(x) for x in (base, value))
    if op not in ("sum", "prod"):  # any of several values may be kept: the largest error covers it
        how = "set" if op == "set" else "max"
        return make_bounded(v, *(at(how, b, u) for b, u in zip(before, update, strict=True)))
    rounds = at("sum", np.zeros(v.shape), np.ones(value.v.shape))
    all_integers = _are_integers(accuracy, base.v, value.v)
    places = np.ravel_multi_index(index, v.shape) if index else np.zeros(value.v.shape, np.intp)
    with np.errstate(all="ignore"):
        size, sizes = np.abs(base.v.astype(np.float64)), np.abs(value.v.astype(np.float64))
        if op == "sum":
            propagated = (
                at("sum", before[0], update[0]),
                at("sum", before[1], update[1]),
                at("sum", before[2], update[2]),
            )
            if not dtype.is_float:
                return make_bounded(v, *propagated)
            absolute, computed_type = at("sum", _finite(size), _finite(sizes)), accuracy.computes(dtype)
            multiplicity = at(
                "sum", np.zeros(v.shape), _multiplicity_terms(sizes, np.broadcast_to(places, sizes.shape))
            )
            squares = absolute**2 / ORDER * multiplicity / np.maximum(rounds, 1)
            return _rounded_sum(v, propagated, absolute, squares, rounds, all_integers, computed_type)
        joined = [
            np.concatenate([b.reshape(-1), u.reshape(-1)])
            for b, u in ((size, sizes), *zip(before, update, strict=True))
        ]

        def along(f: np.ufunc, x: Array) -> Array:
            """The old values, combined by `f` with all updates of their place."""
            out = x[: size.size].copy()
            f.at(out, places.reshape(-1), x[size.size :])
            return out.reshape(v.shape)

        propagated = _product_errors(joined[0], (joined[1], joined[2], joined[3]), along)
        return _product(v, propagated, _product_range(joined[0], along), rounds, all_integers, dtype, accuracy)


def scatter_undecided(op: str, base: Bounded, index: tuple[Array, ...], value: Bounded) -> Bounded:
    """`base`, if it is undecided whether `value` is set at, or combined into, `index`: each step is an error."""
    shape = base.v.shape
    places = np.ravel_multi_index(index, shape) if index else np.zeros(value.v.shape, np.int64)
    old = base.v.reshape(-1)[places]
    with np.errstate(all="ignore"):
        new = value.v if op == "set" else scalar.apply(COMBINE[op], (old, value.v))
        step = distance(new, old) + worst_error(value)
    e1, e2, common = (np.array(e).reshape(-1) for e in errors(base))
    np.add.at(e1, places, step)
    np.add.at(e2, places, undecided(step))
    return make_bounded(base.v, *(e.reshape(shape) for e in (e1, e2, common)))
