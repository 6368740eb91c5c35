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
from compiler.passes.torch_to_tensor.builder import Builder, Index, Shape, Value, drop_dims

LAUNCH = 200_000  # the cost of a kernel launch on a GPU, in comparisons of a counting sum; on a CPU it is free

Precedes = Callable[[Expr, Expr], Expr]
Row = Callable[[Index, Expr], Expr]  # the element of a row at a position


def strict_order(descending: bool) -> Precedes:
    return (lambda x, y: _is_less(y, x)) if descending else _is_less


def _is_less(x: Expr, y: Expr) -> Expr:
    """Less, where NaN is greater than everything else."""
    if not x.dtype.is_float:
        return op("lt", x, y)
    return op("and", op("not", op("ge", x, y)), op("not", op("isnan", x)))


def pick_in_turn(b: Builder, x: Value, d: int, shape: Shape, descending: bool) -> tuple[Value, Value]:
    """Find the first elements one after the other: the best of those left, then its least position."""
    picks: list[Value] = []
    for _ in range(static(shape[d])):
        picks.append(_best_remaining(b, x, d, descending, picks[-1] if picks else None))

    def position_at(i: Index) -> Expr:
        row = drop_dims(i, (d,))
        out = picks[-1].at(row)
        for m in reversed(range(len(picks) - 1)):
            out = op("where", op("eq", i[d], m), picks[m].at(row), out)
        return cast(out, dt.i64)

    indices = b.map(shape, position_at, "index")
    return b.map(shape, lambda i: _row_element(x, d, drop_dims(i, (d,)), indices.at(i)), "value"), indices


def _row_element(x: Value, d: int, row: Index, position: Expr) -> Expr:
    """The element of a row along axis `d` at a position."""
    return x.at((*row[:d], position, *row[d:]))


def _isnan(e: Expr) -> Expr:
    return op("isnan", e) if e.dtype.is_float else const(False, dt.boolean)


def _best_remaining(b: Builder, x: Value, d: int, descending: bool, last: Value | None) -> Value:
    """The position, in each row, of the best element of those left after the `last` one chosen.

    Left are the elements worse than that one, and equal ones at later positions. NaN is greater than all numbers, so
    NaNs are chosen before all numbers or after them.
    """
    rows, n, reduction = drop_dims(x.shape, (d,)), static(x.shape[d]), "max" if descending else "min"
    # Positions after which there is nothing, and everything.
    after_all, before_all = const(n, dt.i32), const(-1, dt.i32)
    infinity = const(math.inf, x.compute) if x.compute.is_float else const(0, x.compute)

    def last_pick(i: Index) -> tuple[Expr, Expr]:
        assert last is not None
        return last.at(i), _row_element(x, d, i, cast(last.at(i), dt.i64))

    def candidate(i: Index, r: Index) -> Expr:
        element = _row_element(x, d, i, r[0])
        if last is None:
            is_remaining = op("not", _isnan(element))
        else:
            last_position, value = last_pick(i)
            limit = op("where", _isnan(value), infinity, value)
            is_later = op(
                "lt",
                op("where", _isnan(value), before_all if descending else after_all, last_position),
                cast(r[0], dt.i32),
            )
            equal, strict = ("le", "lt") if descending else ("ge", "gt")
            is_remaining = op("where", is_later, op(equal, element, limit), op(strict, element, limit))
        return op("where", is_remaining, element, identity(reduction, element.dtype))

    best = b.reduce(reduction, rows, (x.shape[d],), candidate, "best")

    def search_starts(i: Index) -> tuple[Expr, Expr]:
        """The positions after which NaN and the best number are searched."""
        if last is None:
            return before_all, before_all
        last_position, value = last_pick(i)
        after_best = op("where", op("eq", value, best.at(i)), last_position, before_all)
        if descending:
            return op("where", _isnan(value), last_position, after_all), after_best
        return op("where", _isnan(value), last_position, before_all), op("where", _isnan(value), after_all, after_best)

    def position_key(i: Index, r: Index) -> Expr:
        element, p = _row_element(x, d, i, r[0]), cast(r[0], dt.i32)
        nan_start, number_start = search_starts(i)
        conditions = [
            both(_isnan(element), op("lt", nan_start, p)),
            both(op("eq", element, best.at(i)), op("lt", number_start, p)),
        ]
        first, second = conditions if descending else conditions[::-1]
        return op("where", first, p, op("where", second, p + n, after_all + n))

    least_key = b.reduce("min", rows, (x.shape[d],), position_key, "least")
    return b.map(
        rows, lambda i: op("where", op("lt", least_key.at(i), n), least_key.at(i), least_key.at(i) - n), "chosen"
    )


def pick_by_groups(b: Builder, x: Value, d: int, shape: Shape, elements: int, descending: bool) -> tuple[Value, Value]:
    """The first elements and their indices, found by groups; `elements` is the total number of elements."""
    n, element_at = static(x.shape[d]), functools.partial(_row_element, x, d)
    positions = _first_positions(
        b, element_at, (*drop_dims(x.shape, (d,)), x.shape[d]), static(shape[d]), elements / n, descending
    )
    indices = b.map(shape, lambda i: cast(positions.at((*drop_dims(i, (d,)), i[d])), dt.i64), "index")
    return b.map(shape, lambda i: element_at(drop_dims(i, (d,)), indices.at(i)), "value"), indices


@functools.lru_cache
def cheapest_grouping(n: int, k: int, rows: float) -> tuple[float, int]:
    """Comparisons to find the first `k` of `n` in all rows, and the size of groups; 0 if all elements are counted."""
    options = [((n + k) * n * rows + 2 * LAUNCH, 0)]
    for group in (2, 4, 8, 16):
        group_count, candidates = -(-n // group), k * group
        if k <= group_count < n:
            cost = (n + candidates * (candidates + k)) * rows + 4 * LAUNCH
            options.append((cheapest_grouping(group_count, k, rows)[0] + cost, group))
    return min(options)


def _first_positions(b: Builder, element_at: Row, shape: Shape, k: int, rows: float, descending: bool) -> Value:
    """The positions of the first `k` elements in each row of a `shape`."""
    *outer, extent = shape
    n = static(extent)
    group = cheapest_grouping(n, k, rows)[1]
    if group:
        element_at, group_count = _pad_row(element_at, n, group, descending), -(-n // group)
        group_firsts = _first_of_groups(b, element_at, (*outer, dim(group_count)), group, descending)
        best_groups = _first_positions(
            b, lambda row, position: group_firsts.at((*row, position)), group_firsts.shape, k, rows, descending
        )

    def candidate(i: Index) -> Expr:
        e = i[-1]
        return best_groups.at((*i[:-1], e // group)) * group + cast(e % group, dt.i32) if group else cast(e, dt.i32)

    count, precedes = dim(k * group if group else n), strict_order(descending)
    positions = b.map((*outer, count), candidate, "candidate")
    values = b.map(
        positions.shape, lambda i: element_at(i[:-1], cast(positions.at(i), dt.i64) if group else i[-1]), "element"
    )

    def comes_before(i: Index, r: Index) -> Expr:
        other = (*i[:-1], r[0])
        other_value, value, earlier = values.at(other), values.at(i), op("lt", positions.at(other), positions.at(i))
        return cast(op("where", earlier, op("not", precedes(value, other_value)), precedes(other_value, value)), dt.i32)

    ranks = b.reduce("sum", positions.shape, (count,), comes_before, "place")

    def position_of_rank(i: Index, r: Index) -> Expr:
        candidate_index = (*i[:-1], r[0])
        return op(
            "where",
            op("eq", ranks.at(candidate_index), cast(i[-1], dt.i32)),
            positions.at(candidate_index),
            const(0, dt.i32),
        )

    return b.reduce("sum", (*outer, dim(k)), (count,), position_of_rank, "from")


def _first_of_groups(b: Builder, element_at: Row, shape: Shape, group: int, descending: bool) -> Value:
    """The first element of each `group` of neighbours; NaN is the greatest, so it is the minimum only of NaNs."""

    def element(i: Index, r: Index) -> Expr:
        return element_at(i[:-1], i[-1] * group + r[0])

    def without_nan(i: Index, r: Index) -> Expr:
        e = element(i, r)
        return op("where", op("isnan", e), identity("min", e.dtype), e) if e.dtype.is_float else e

    if descending:
        return b.reduce("max", shape, (dim(group),), element, "best")
    least = b.reduce("min", shape, (dim(group),), without_nan, "best")
    if not least.dtype.is_float:
        return least
    is_all_nan = b.reduce("and", shape, (dim(group),), lambda i, r: op("isnan", element(i, r)), "none")
    return b.map(shape, lambda i: op("where", is_all_nan.at(i), const(math.nan, least.dtype), least.at(i)), "first")


def _pad_row(element_at: Row, n: int, group: int, descending: bool) -> Row:
    """Elements of a row; beyond its end, where the last group needs them, elements that come last."""

    def element(row: Index, position: Expr) -> Expr:
        e = element_at(row, op("min", position, n - 1))
        pads_with_nan = e.dtype.is_float and not descending
        padding = const(math.nan, e.dtype) if pads_with_nan else identity("max" if descending else "min", e.dtype)
        return op("where", op("lt", position, n), e, padding)

    return element if n % group else element_at
