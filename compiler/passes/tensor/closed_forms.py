"""Closed forms of equations over indices, which need no loop: counts, and scatters to consecutive places.

The number of integers in a range that satisfy a bound is the bound, clamped to the range. A scatter that adds up runs
of equal length, such as bags of one size, is a sum over each run. A sum over a row of a one-hot matrix, such as the
gradient of a loss of classes, is its one element.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.ir.dtype import STORAGE_ONLY, boolean, i64
from compiler.ir.expr import (
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    both,
    dim,
    identity,
    names,
    op,
    requiring,
    select,
    substitute,
)
from compiler.ir.index import simplify
from compiler.ir.linear import from_linear, linear, times
from compiler.ir.tensor import Axis, Equation, Map, Reduce, Scatter, axis_ranges

_MOST_MAPS = 4  # maps between a one-hot matrix and its sum


def closed_form(e: Equation) -> Equation:
    """Return an equation that avoids unnecessary iterations, or `e` itself.

    >>> i, r = Axis("i", dim(6)), Axis("r", dim(3))
    >>> count = Reduce("count", (i,), "sum", (r,), Cast(op("le", r.var * 2, i.var), i64))
    >>> closed_form(count) is Map("count", (i,), i.var // 2 + 1)
    True
    """
    match e:
        case Reduce(op="sum", over=(over,), value=Cast(Op() as cond)) if e.dtype is i64 and _is_static(over):
            count = _count_points(cond, over)
            return e if count is None else Map(e.name, e.axes, simplify(count, axis_ranges(e.axes)), e.narrow)
        case Reduce(op="and" | "or", value=Const() as value) if all(map(_is_static, e.over)):
            return Map(e.name, e.axes, value, e.narrow)
        case Scatter():
            return _scatter_as_reduction(e) or e
    return e


def sum_of_one_hot(e: Equation, earlier: Mapping[str, Equation]) -> Equation:
    """Return a sum of values that are 0 except where an index is a certain number as that one value; else `e` itself.

    `earlier` are the equations before `e`. A zero may be multiplied by a number that is infinite or NaN and then is
    NaN, as is the sum: it remains in the result.

    >>> i, r, x = Axis("i", dim(6)), Axis("r", dim(9)), Load("x", (Var("i"),), i64)
    >>> hot = Map("hot", (i, r), op("where", op("eq", r.var, x), dim(3), dim(0)))
    >>> row = Reduce("row", (i,), "sum", (r,), Load("hot", (i.var, r.var), i64))
    >>> is_inside = both(op("ge", x, 0), op("lt", x, 9))
    >>> sum_of_one_hot(row, {"hot": hot}) is Map("row", (i,), select(is_inside, dim(3), dim(0)))
    True
    """
    if not isinstance(e, Reduce) or e.op != "sum" or len(e.over) != 1 or not _is_static(e.over[0]):
        return e
    over = e.over[0]
    value = _without_loads_over(e.value, over.var, earlier)
    hits = [] if value is None else [n for n in value.walk() if _is_hit(n, over.var)]
    if value is None or len(hits) != 1 or over.extent is dim(1):
        return e
    ranges = axis_ranges(e.axes)
    one, zero = (simplify(substitute(value, {hits[0]: Const(hit, boolean)}), ranges) for hit in (True, False))
    if over.name in names(one) | names(zero) or not _is_zero_or_nan(zero):
        return e
    place = next(a for a in hits[0].args if a is not over.var)
    is_inside = both(op("ge", place, dim(0)), op("lt", place, over.extent))
    total = one if isinstance(zero, Const) else one + zero
    return Map(e.name, e.axes, select(is_inside, total, zero), e.narrow)


def _without_loads_over(value: Expr, var: Var, earlier: Mapping[str, Equation]) -> Expr | None:
    """A value with the maps that it loads at an index with `var` in it; None if it loads anything else there."""
    for _ in range(_MOST_MAPS):
        inner = [n for n in value.walk() if isinstance(n, Load) and var.name in names(n)]
        if not inner:
            return value
        elements = {n: element(e, n.index) for n in inner if isinstance(e := earlier.get(n.buffer), Map)}
        if len(elements) < len(inner):
            return None
        value = substitute(value, elements)
    return None


def element(e: Map, index: tuple[Expr, ...]) -> Expr:
    """The value of a map at an index, with the checks of indices that the value does not depend on."""
    table = {a.var: i for a, i in zip(e.axes, index, strict=True)}
    used = set(e.value.walk())
    return requiring(substitute(e.value, table), [i for var, i in table.items() if var not in used])


def _is_hit(n: object, var: Var) -> bool:
    if not isinstance(n, Op) or n.name != "eq" or var not in n.args:
        return False
    a, b = n.args
    return var.name not in names(b if a is var else a)


def _is_zero_or_nan(value: Expr) -> bool:
    match value:
        case Const(number):
            return number == 0
        case Op("mul", (a, b)):
            return _is_zero_or_nan(a) or _is_zero_or_nan(b)
        case Op("neg", (a,)) | Cast(a):
            return _is_zero_or_nan(a)
        case Op("where", (_, a, b)) | Select(_, a, b):
            return _is_zero_or_nan(a) and _is_zero_or_nan(b)
    return False


def _is_static(a: Axis) -> bool:
    return isinstance(a.extent, Const) and a.extent.value > 0


def _count_points(cond: Op, over: Axis) -> Expr | None:
    """The number of points of an axis at which a comparison of indices holds; None for other conditions."""
    if cond.name not in ("lt", "le", "gt", "ge") or cond.args[0].dtype is not i64:
        return None
    if any(isinstance(n, Load) for n in cond.walk()):
        return None
    a, b = cond.args
    # Normalise to `by * over + rest < 0`.
    form = a - b if cond.name in ("lt", "le") else b - a
    terms, rest = linear(form - 1 if cond.name in ("le", "ge") else form)
    by = terms.get(over.var, 0)
    others = {atom: c for atom, c in terms.items() if atom is not over.var}, rest
    if not by or any(over.var in set(atom.walk()) for atom in others[0]):
        return None
    if by > 0:
        return _clamp_to_extent((from_linear(times(others, -1)) + (by - 1)) // by, over)
    return over.extent - _clamp_to_extent(from_linear(others) // -by + 1, over)


def _clamp_to_extent(bound: Expr, over: Axis) -> Expr:
    return op("min", op("max", bound, dim(0)), over.extent)


def _scatter_as_reduction(e: Scatter) -> Reduce | None:
    """Return a scatter as a reduction, if each index is one of its axes or such an axis divided by a constant."""
    start = identity(e.op, e.dtype) if e.op != "set" and e.dtype not in STORAGE_ONLY else None
    if start is None or e.base is not start or not (isinstance(e.guard, Const) and e.guard.value):
        return None
    extents = {a.var: int(a.extent.value) for a in e.over if _is_static(a) and isinstance(a.extent, Const)}
    table: dict[Expr, Expr] = {}
    runs: list[Axis] = []
    taken = {a.name for a in (*e.axes, *e.over)}
    for axis, place in zip(e.axes, e.index, strict=True):
        var, length = (place.args[0], place.args[1]) if isinstance(place, Op) else (place, dim(1))
        if not isinstance(var, Var) or var in table or var not in extents or not _is_static(axis):
            return None
        if isinstance(place, Op) and (place.name != "floordiv" or not isinstance(length, Const)):
            return None
        if axis.extent * length is not dim(extents[var]):
            return None
        table[var] = axis.var
        if length is not dim(1):
            runs.append(Axis(f"{var.name}_run", length))
            table[var] = axis.var * length + runs[-1].var
    if set(table) != set(extents) or len(extents) < len(e.over) or not runs or taken & {a.name for a in runs}:
        return None
    ranges = axis_ranges((*e.axes, *runs))
    return Reduce(e.name, e.axes, e.op, tuple(runs), simplify(substitute(e.value, table), ranges), e.narrow)
