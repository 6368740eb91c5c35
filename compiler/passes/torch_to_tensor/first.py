"""The first k elements of rows in order, without a full sort: one after the other, or by groups of neighbours.

The first k elements lie in the k groups whose own first elements come first. These groups are found recursively, in
groups of groups, until there are few. Then the k elements among k groups are found by counting, for each element, those
that come before it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from compiler.ir import dtype as dt
from compiler.ir.expr import Expr, both, cast, const, dim, identity, op, static
from compiler.passes.torch_to_tensor.builder import Builder, Index, Shape, Value, without

LAUNCH = 200_000  # the cost of a kernel launch on a GPU, in comparisons of a counting sum; on a CPU it is free

Before = Callable[[Expr, Expr], Expr]
Row = Callable[[Index, Expr], Expr]  # the element of a row at a position


def before(descending: bool) -> Before:
    return (lambda x, y: _less(y, x)) if descending else _less


def _less(x: Expr, y: Expr) -> Expr:
    """Less, where NaN is greater than everything else."""
    if not x.dtype.is_float:
        return op("lt", x, y)
    return op("and", op("not", op("ge", x, y)), op("not", op("isnan", x)))


def chosen(b: Builder, x: Value, d: int, shape: Shape, descending: bool) -> tuple[Value, Value]:
    """Find the first elements one after the other: the best of those left, then its least position."""
    picks: list[Value] = []
    for _ in range(static(shape[d])):
        picks.append(_best_left(b, x, d, descending, picks[-1] if picks else None))

    def nth(i: Index) -> Expr:
        row = without(i, (d,))
        out = picks[-1].at(row)
        for m in reversed(range(len(picks) - 1)):
            out = op("where", op("eq", i[d], m), picks[m].at(row), out)
        return cast(out, dt.i64)

    indices = b.map(shape, nth, "index")
    return b.map(shape, lambda i: _along(x, d, without(i, (d,)), indices.at(i)), "value"), indices


def _along(x: Value, d: int, row: Index, place: Expr) -> Expr:
    """The element of a row along axis `d` at a position."""
    return x.at((*row[:d], place, *row[d:]))


def _isnan(e: Expr) -> Expr:
    return op("isnan", e) if e.dtype.is_float else const(False, dt.boolean)


def _best_left(b: Builder, x: Value, d: int, descending: bool, last: Value | None) -> Value:
    """The position, in each row, of the best element of those left after the `last` one chosen.

    Left are the elements worse than that one, and equal ones at later positions. NaN is greater than all numbers, so
    NaNs are chosen before all numbers or after them.
    """
    rows, n, how = without(x.shape, (d,)), static(x.shape[d]), "max" if descending else "min"
    none, every = const(n, dt.i32), const(-1, dt.i32)  # positions after which there is nothing, and everything
    infinity = const(math.inf, x.compute) if x.compute.is_float else const(0, x.compute)

    def before(i: Index) -> tuple[Expr, Expr]:
        assert last is not None
        return last.at(i), _along(x, d, i, cast(last.at(i), dt.i64))

    def number(i: Index, r: Index) -> Expr:
        here = _along(x, d, i, r[0])
        if last is None:
            left = op("not", _isnan(here))
        else:
            place, value = before(i)
            limit = op("where", _isnan(value), infinity, value)
            behind = op("lt", op("where", _isnan(value), every if descending else none, place), cast(r[0], dt.i32))
            equal, worse = ("le", "lt") if descending else ("ge", "gt")
            left = op("where", behind, op(equal, here, limit), op(worse, here, limit))
        return op("where", left, here, identity(how, here.dtype))

    best = b.reduce(how, rows, (x.shape[d],), number, "best")

    def behind(i: Index) -> tuple[Expr, Expr]:
        """The positions after which NaN and the best number are searched."""
        if last is None:
            return every, every
        place, value = before(i)
        again = op("where", op("eq", value, best.at(i)), place, every)
        if descending:
            return op("where", _isnan(value), place, none), again
        return op("where", _isnan(value), place, every), op("where", _isnan(value), none, again)

    def place(i: Index, r: Index) -> Expr:
        here, p = _along(x, d, i, r[0]), cast(r[0], dt.i32)
        nans, numbers = behind(i)
        found = [both(_isnan(here), op("lt", nans, p)), both(op("eq", here, best.at(i)), op("lt", numbers, p))]
        first, second = found if descending else found[::-1]
        return op("where", first, p, op("where", second, p + n, none + n))

    least = b.reduce("min", rows, (x.shape[d],), place, "least")
    return b.map(rows, lambda i: op("where", op("lt", least.at(i), n), least.at(i), least.at(i) - n), "chosen")


def grouped(b: Builder, x: Value, d: int, shape: Shape, elements: int, descending: bool) -> tuple[Value, Value]:
    """The first elements and their indices, found by groups; `elements` is the total number of elements."""
    n, at = static(x.shape[d]), functools.partial(_along, x, d)
    found = _found(b, at, (*without(x.shape, (d,)), x.shape[d]), static(shape[d]), elements / n, descending)
    indices = b.map(shape, lambda i: cast(found.at((*without(i, (d,)), i[d])), dt.i64), "index")
    return b.map(shape, lambda i: at(without(i, (d,)), indices.at(i)), "value"), indices


@functools.lru_cache
def cheapest(n: int, k: int, rows: float) -> tuple[float, int]:
    """Comparisons to find the first `k` of `n` in all rows, and the size of groups; 0 if all elements are counted."""
    options = [((n + k) * n * rows + 2 * LAUNCH, 0)]
    for group in (2, 4, 8, 16):
        number, candidates = -(-n // group), k * group
        if k <= number < n:
            counted = (n + candidates * (candidates + k)) * rows + 4 * LAUNCH
            options.append((cheapest(number, k, rows)[0] + counted, group))
    return min(options)


def _found(b: Builder, at: Row, shape: Shape, k: int, rows: float, descending: bool) -> Value:
    """The positions of the first `k` elements in each row of a `shape`."""
    *outer, extent = shape
    n = static(extent)
    group = cheapest(n, k, rows)[1]
    if group:
        at, number = _padded(at, n, group, descending), -(-n // group)
        first = _firsts(b, at, (*outer, dim(number)), group, descending)
        best = _found(b, lambda row, place: first.at((*row, place)), first.shape, k, rows, descending)

    def candidate(i: Index) -> Expr:
        e = i[-1]
        return best.at((*i[:-1], e // group)) * group + cast(e % group, dt.i32) if group else cast(e, dt.i32)

    count, strictly = dim(k * group if group else n), before(descending)
    places = b.map((*outer, count), candidate, "candidate")
    values = b.map(places.shape, lambda i: at(i[:-1], cast(places.at(i), dt.i64) if group else i[-1]), "element")

    def comes_before(i: Index, r: Index) -> Expr:
        other = (*i[:-1], r[0])
        there, here, earlier = values.at(other), values.at(i), op("lt", places.at(other), places.at(i))
        return cast(op("where", earlier, op("not", strictly(here, there)), strictly(there, here)), dt.i32)

    order = b.reduce("sum", places.shape, (count,), comes_before, "place")

    def has(i: Index, r: Index) -> Expr:
        one = (*i[:-1], r[0])
        return op("where", op("eq", order.at(one), cast(i[-1], dt.i32)), places.at(one), const(0, dt.i32))

    return b.reduce("sum", (*outer, dim(k)), (count,), has, "from")


def _firsts(b: Builder, at: Row, shape: Shape, group: int, descending: bool) -> Value:
    """The first element of each `group` of neighbours; NaN is the greatest, so it is the minimum only of NaNs."""

    def element(i: Index, r: Index) -> Expr:
        return at(i[:-1], i[-1] * group + r[0])

    def number(i: Index, r: Index) -> Expr:
        e = element(i, r)
        return op("where", op("isnan", e), identity("min", e.dtype), e) if e.dtype.is_float else e

    if descending:
        return b.reduce("max", shape, (dim(group),), element, "best")
    least = b.reduce("min", shape, (dim(group),), number, "best")
    if not least.dtype.is_float:
        return least
    none = b.reduce("and", shape, (dim(group),), lambda i, r: op("isnan", element(i, r)), "none")
    return b.map(shape, lambda i: op("where", none.at(i), const(math.nan, least.dtype), least.at(i)), "first")


def _padded(at: Row, n: int, group: int, descending: bool) -> Row:
    """Elements of a row; beyond its end, where the last group needs them, elements that come last."""

    def element(row: Index, place: Expr) -> Expr:
        e = at(row, op("min", place, n - 1))
        nan = e.dtype.is_float and not descending
        last = const(math.nan, e.dtype) if nan else identity("max" if descending else "min", e.dtype)
        return op("where", op("lt", place, n), e, last)

    return element if n % group else at
