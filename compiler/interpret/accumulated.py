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
    distance,
    errors,
    made,
    overflowing,
    shared,
    tolerance,
    worst,
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
        return Bounded(scalar.reduce(op, x.v, axes, _held(dtype)))
    free = x.v.shape[: x.v.ndim - len(axes)]
    terms = x.map(lambda a: np.broadcast_to(a, x.v.shape).reshape((*free, math.prod(x.v.shape[len(free) :]))))
    v = scalar.reduce(op, terms.v, (len(free),), _held(dtype))
    with np.errstate(all="ignore"):
        match op:
            case "sum":
                return _sum(v, terms, dtype, accuracy)
            case "prod":
                size = np.abs(terms.v.astype(np.float64))
                grown = _grown(size, errors(terms), lambda f, e: np.asarray(f.reduce(e, -1)))
                reach = _reached(size, lambda f, e: np.asarray(f.reduce(e, -1)))
                count = accuracy.rounds(size.shape[-1])
                return _product(v, grown, reach, count, _whole(accuracy, x.v), dtype, accuracy)
        return _extreme(op, v, terms, lambda e: scalar.reduce(_PICK[op], e, (len(free),), f64))


def _held(dtype: DType) -> DType:
    return f64 if dtype.is_float else dtype


def _whole(accuracy: Accuracy, *terms: Array) -> bool:
    """Whether all finite elements are integers, so that sums are, too; not for another formula, which may divide."""
    return not accuracy.algebra and all(
        _all(lambda part: (part == np.rint(part)) | ~np.isfinite(part), x) for x in terms
    )


def _all(holds: Callable[[Array], Array], x: Array) -> bool:
    """Whether something holds for every element; the first few elements decide for most arrays."""
    return bool(holds(x[(slice(2),) * x.ndim]).all()) and bool(holds(x).all())


def _finite(x: Array) -> Array:
    """The array with 0 for elements that are not finite: an infinity is not rounded."""
    if not x.size or (np.isfinite(x.min()) and np.isfinite(x.max())):
        return x
    return np.where(np.isfinite(x), x, 0.0)


def _rounded_sum(
    v: Array, brought: Errors, absolute: Array, mean_square: Array, rounds: int | Array, whole: bool, dtype: DType
) -> Bounded:
    """A sum whose terms have the errors `brought`, after `rounds` roundings of partial sums with this mean square."""
    u = UNIT[dtype.name]
    e1, e2, common = _unless_lost(v, brought)
    exact = ~np.isfinite(v) | ((absolute <= 1 / u) & (e1 == 0) & whole)  # integers, all representable in the type
    e1 = e1 + np.where(exact, 0.0, rounds * u * absolute)
    e2 = e2 + np.where(exact, 0.0, ORDER * rounds * u * u * mean_square / 3)
    # Of finite terms: an infinite sum of these overflows f64.
    return overflowing(v, e1, e2, common, np.minimum(absolute, np.finfo(np.float64).max), dtype)


def _unless_lost(v: Array, e: Errors) -> Errors:
    """The errors, without finite errors where the value is certainly infinite or NaN."""
    lost = ~np.isfinite(v) & ~np.isinf(e[0])
    return (np.where(lost, 0.0, e[0]), np.where(lost, 0.0, e[1]), np.where(lost, 0.0, e[2])) if lost.any() else e


def _sum(v: Array, x: Bounded, dtype: DType, accuracy: Accuracy) -> Bounded:
    """The sum over the last dimension."""
    n = x.v.shape[-1]
    e1, e2, common = errors(x)
    brought = e1.sum(-1), e2.sum(-1), common.sum(-1)
    if n == 0 or not dtype.is_float:
        return made(v, *brought)
    terms = _finite(x.v)
    mean_square = (terms**2).sum(-1) / min(BLOCKS, n) + np.maximum(_partial(terms, 1), _partial(terms, LANES))
    alike, own = _alike(terms, _rows(terms)).mean(-1), accuracy.computes(dtype)
    absolute, whole = np.abs(terms).sum(-1), _whole(accuracy, x.v)
    return _rounded_sum(v, brought, absolute, alike * mean_square, accuracy.rounds(n), whole, own)


def _rows(x: Array) -> Array:
    """The row number of each element."""
    return np.broadcast_to(np.arange(math.prod(x.shape[:-1])).reshape((*x.shape[:-1], 1)), x.shape)


def _alike(x: Array, places: Array) -> Array:
    """Terms of the sum of squared multiplicities of values per place: 2 k - 1 for a value's k-th occurrence."""
    order = np.lexsort((x.reshape(-1), places.reshape(-1)))
    here, value = places.reshape(-1)[order], x.reshape(-1)[order]
    number = np.arange(x.size)
    begins = np.ones(x.size, np.bool_)
    begins[1:] = (here[1:] != here[:-1]) | (value[1:] != value[:-1])
    out = np.empty(x.size)
    out[order] = 2.0 * (number - np.maximum.accumulate(np.where(begins, number, 0))) + 1
    return out.reshape(x.shape)


def _partial(x: Array, lanes: int) -> Array:
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


def _grown(size: Array, e: Errors, along: Callable[[np.ufunc, Array], Array]) -> Errors:
    """How much a product of independent factors changes when each has an error."""

    def more(size: Array, e: Array) -> Array:
        whole = along(np.multiply, size)
        # At least by the sum of relative errors: added to a factor, one below 2**-53 would be lost.
        least = whole * along(np.add, np.where(size > 0, e / size, 0.0))
        all_terms = np.maximum(along(np.multiply, size + e) - whole, 0.0)
        return np.asarray(np.where(np.isnan(least), all_terms, np.maximum(all_terms, least)))

    return more(size, e[0]), more(size**2, e[1]), more(size, e[2])


@dataclass(frozen=True)
class _Reach:
    """Ranges of partial products of the finite, nonzero factors, and whether all factors are finite.

    Even in f64, `largest` may be infinite and `least` zero.
    """

    largest: Array
    least: Array
    finite: Array


def _reached(size: Array, along: Callable[[np.ufunc, Array], Array]) -> _Reach:
    ordinary = np.isfinite(size) & (size > 0)
    return _Reach(
        along(np.multiply, np.where(ordinary, np.maximum(size, 1.0), 1.0)),
        along(np.multiply, np.where(ordinary, np.minimum(size, 1.0), 1.0)),
        along(np.logical_and, np.isfinite(size)),
    )


def _product(
    v: Array, brought: Errors, reach: _Reach, rounds: int | Array, whole: bool, dtype: DType, accuracy: Accuracy
) -> Bounded:
    """A product in any order: on the way it may overflow or underflow, even if other factors bring it back."""
    if not dtype.is_float:
        return made(v, *brought)
    own = accuracy.computes(dtype)
    u, eta = UNIT[own.name], ETA[own.name]
    e1, e2, common = _unless_lost(v, brought)
    exact = (reach.largest <= 1 / u) & (e1 == 0) & whole
    vanished = np.where(reach.least < eta / u, reach.largest, 1.0) * eta  # denormal partial products lose digits
    rounding = np.where(exact | ~np.isfinite(v), 0.0, rounds * (u * np.abs(v) + vanished))
    lost = np.where(reach.finite, ~(reach.largest < OVERFLOW[own.name]), np.isinf(v) & (reach.least <= eta))
    e = tuple(np.where(lost, np.inf, x) for x in (e1 + rounding, e2 + rounding**2 / 3, common))
    return made(v, *e)


def _extreme(op: str, v: Array, x: Bounded, pick: Callable[[Array], Array]) -> Bounded:
    """An extreme lies between those of the least and of the greatest values that the terms may have."""
    if op in ("and", "or") and x.v.dtype.kind != "b":
        lost = np.full(v.shape, np.inf)
        return made(v, lost, lost, lost)
    values = x.v.astype(np.float64)
    centre = pick(values)

    def reach(by: Array) -> Array:
        return np.maximum(distance(pick(values + by), centre), distance(pick(values - by), centre))

    usual = reach(tolerance(x)) / LAMBDA
    return made(v, reach(worst(x)), ZERO, usual) if np.any(shared(x)) else made(v, reach(worst(x)), usual**2, ZERO)


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
    blocks = _blocks(k)
    total = partial = 0.0
    for block in range(blocks):
        part = slice(block * k // blocks, (block + 1) * k // blocks)
        total = total + x[..., part] @ y[..., part, :]
        partial = partial + total**2 / blocks
    return Moments(total, abs(x) @ abs(y), (x * x) @ (y * y), partial)


def _blocks(k: int) -> int:
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
        found = how(x, y)
        v = found.total if x is a.v and y is b.v else np.asarray(np.matmul(a.v, b.v))
        brought = _brought(a, b, x, y)
        if not dtype.is_float:
            return made(v, *brought)
        k = x.shape[-1]
        mean_square = found.squares / _blocks(k) + found.partial
        own = accuracy.computes(dtype)
        rounds = accuracy.rounds(k) + 1
        split = accuracy.matmul * UNIT[dtype.name] if accuracy.matmul and _long(x, y) else 0.0
        if (split or accuracy.coarse) and dtype is f32 and not accuracy.algebra:
            lost = split + accuracy.coarse
            e1, e2, common = brought
            brought = e1 + lost * found.absolute, e2 + lost**2 / 3 * found.squares, common
        whole = _whole(accuracy, a.v, b.v)
        if accuracy.flushes and dtype is f32 and not whole:
            vanished = _flushed(np.abs(x), np.abs(y))
            brought = brought[0] + vanished, brought[1], brought[2] + vanished
        return _rounded_sum(v, brought, found.absolute, mean_square, rounds, whole, own)


def _flushed(x: Array, y: Array) -> Array:
    """Error of products of these sizes if denormals are flushed to zero: of factors, and of each partial sum."""
    lost = np.asarray(2 * x.shape[-1] * LEAST_NORMAL)
    small = [np.where(f < LEAST_NORMAL, f, 0.0) for f in (x, y)]
    for left, right in ((small[0], y), (x, small[1])):
        lost = lost + left @ right if left.any() and right.any() else lost
    return lost


def _long(*factors: Array) -> bool:
    """Whether any element needs more bits than one tf32 number has, so that its product is made of several."""
    return not all(_all(lambda part: scalar.apply("tf32", (part.astype(np.float32),)) == part, x) for x in factors)


def _brought(a: Bounded, b: Bounded, x: Array, y: Array) -> Errors:
    """The products' errors from their factors' errors: each error times the other factor, and times its error."""
    if a.e1 is None and b.e1 is None:
        return ZERO, ZERO, ZERO
    sizes = np.abs(x), np.abs(y)
    ways = (sizes, (x * x, y * y), sizes)
    e1, e2, common = (_carried(m, n, e, f) for (m, n), e, f in zip(ways, _errors(a), _errors(b), strict=True))
    return e1, e2, common


def _errors(x: Bounded) -> tuple[Array | None, ...]:
    """Like `errors`, but None for those that are zero everywhere."""
    return tuple(e if np.any(e) else None for e in errors(x))


def _carried(x: Array, y: Array, a: Array | None, b: Array | None) -> Array:
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
    own = accuracy.computes(dtype)
    rounds = np.asarray([accuracy.rounds(n + 1) for n in range(v.shape[axis])])
    rounds = rounds.reshape([-1 if d == axis else 1 for d in range(v.ndim)])
    e1, e2, common = errors(x)
    with np.errstate(all="ignore"):
        match op:
            case "sum" if not dtype.is_float:
                return made(v, e1.cumsum(axis), e2.cumsum(axis), common.cumsum(axis))
            case "sum":
                brought = e1.cumsum(axis), e2.cumsum(axis), common.cumsum(axis)
                terms = _finite(x.v)
                squares = (terms.cumsum(axis) ** 2 + terms**2).cumsum(axis) / np.maximum(rounds, 1)
                along = np.moveaxis(terms, axis, -1)
                alike = np.moveaxis(_alike(along, _rows(along)), -1, axis).cumsum(axis)
                squares = squares * alike / np.ones(terms.shape).cumsum(axis)
                return _rounded_sum(v, brought, np.abs(terms).cumsum(axis), squares, rounds, _whole(accuracy, x.v), own)
            case "prod":
                size = np.abs(x.v.astype(np.float64))
                grown = _grown(size, errors(x), lambda f, e: np.asarray(f.accumulate(e, axis)))
                reach = _reached(size, lambda f, e: np.asarray(f.accumulate(e, axis)))
                return _product(v, grown, reach, rounds, _whole(accuracy, x.v), dtype, accuracy)
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
    return made(places, e1, (e1 / LAMBDA) ** 2, ZERO)


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
    before, update = errors(base), errors(value)
    if op not in ("sum", "prod"):  # any of several values may be kept: the largest error covers it
        how = "set" if op == "set" else "max"
        return made(v, *(at(how, b, u) for b, u in zip(before, update, strict=True)))
    rounds = at("sum", np.zeros(v.shape), np.ones(value.v.shape))
    whole = _whole(accuracy, base.v, value.v)
    places = np.ravel_multi_index(index, v.shape) if index else np.zeros(value.v.shape, np.intp)
    with np.errstate(all="ignore"):
        size, sizes = np.abs(base.v.astype(np.float64)), np.abs(value.v.astype(np.float64))
        if op == "sum":
            brought = at("sum", before[0], update[0]), at("sum", before[1], update[1]), at("sum", before[2], update[2])
            if not dtype.is_float:
                return made(v, *brought)
            absolute, own = at("sum", _finite(size), _finite(sizes)), accuracy.computes(dtype)
            alike = at("sum", np.zeros(v.shape), _alike(sizes, np.broadcast_to(places, sizes.shape)))
            squares = absolute**2 / ORDER * alike / np.maximum(rounds, 1)
            return _rounded_sum(v, brought, absolute, squares, rounds, whole, own)
        joined = [
            np.concatenate([b.reshape(-1), u.reshape(-1)])
            for b, u in ((size, sizes), *zip(before, update, strict=True))
        ]

        def along(f: np.ufunc, x: Array) -> Array:
            """The old values, combined by `f` with all updates of their place."""
            out = x[: size.size].copy()
            f.at(out, places.reshape(-1), x[size.size :])
            return out.reshape(v.shape)

        grown = _grown(joined[0], (joined[1], joined[2], joined[3]), along)
        return _product(v, grown, _reached(joined[0], along), rounds, whole, dtype, accuracy)


def perhaps(op: str, base: Bounded, index: tuple[Array, ...], value: Bounded) -> Bounded:
    """`base`, if it is undecided whether `value` is set at, or combined into, `index`: each step is an error."""
    shape = base.v.shape
    at = np.ravel_multi_index(index, shape) if index else np.zeros(value.v.shape, np.int64)
    there = base.v.reshape(-1)[at]
    with np.errstate(all="ignore"):
        then = value.v if op == "set" else scalar.apply(COMBINE[op], (there, value.v))
        step = distance(then, there) + worst(value)
    e1, e2, common = (np.array(e).reshape(-1) for e in errors(base))
    np.add.at(e1, at, step)
    np.add.at(e2, at, (step / LAMBDA) ** 2)
    return made(base.v, *(e.reshape(shape) for e in (e1, e2, common)))
