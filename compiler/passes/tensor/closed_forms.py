"""Closed forms of equations over indices, which need no loop: counts, and scatters to consecutive places.

The number of integers in a range that satisfy a bound is the bound, clamped to the range. A scatter that adds up runs
of equal length, such as bags of one size, is a sum over each run.
"""

from __future__ import annotations

from compiler.ir.dtype import STORAGE_ONLY, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Var, dim, identity, op, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import from_linear, linear, times
from compiler.ir.tensor import Axis, Equation, Map, Reduce, Scatter, axis_ranges


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
