"""Narrow reductions to the positions that can contribute.

This matters for windows that extend beyond their input: of 640 x 640 positions on an image of 2 x 2, four count.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.dtype import i64
from compiler.ir.expr import Cast, Const, Expr, Op, Select, cast, const, identity, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.tensor import Axis, Program, Reduce, axis_ranges
from compiler.ir.value_ranges import Ranges, conjuncts, value_range


def narrow_windows(program: Program) -> Program:
    """Restrict every reduction to the positions that the conditions of its value admit."""
    groups = [
        g.replace(equations=tuple(narrowed(e) if isinstance(e, Reduce) else e for e in g.equations))
        for g in program.groups
    ]
    return program.replace(groups=tuple(groups))


def narrowed(e: Reduce) -> Reduce:
    """The same reduction over shorter axes, if its value is the identity of its operation beyond them.

    >>> from compiler.ir.dtype import f32
    >>> from compiler.ir.expr import Load, Var, dim, op
    >>> r = Var("r")
    >>> inside = Select(op("lt", r, 2), Load("x", (r,), f32), const(0, f32))
    >>> narrowed(Reduce("y", (), "sum", (Axis("r", dim(640)),), inside)).over == (Axis("r", dim(2)),)
    True
    """
    conditions = list(_conditions(e.value, identity(e.op, e.dtype)))
    if not conditions:
        return e
    ranges = axis_ranges((*e.axes, *e.over))
    over: list[Axis] = []
    moved: dict[Expr, Expr] = {}
    for a in e.over:
        first, last = _span(a, conditions, ranges)
        if first > last or a.extent is const(last + 1 - first):
            over.append(a)
            continue
        moved[a.var] = a.var + first if first < last else const(first)
        if first < last:
            over.append(Axis(a.name, const(last + 1 - first)))
    if not moved:
        return e
    value = simplify(substitute(e.value, moved), axis_ranges((*e.axes, *over)))
    return e.replace(over=tuple(over), value=value)


def _conditions(value: Expr, neutral: Const) -> Iterator[Expr]:
    """Conditions that hold wherever `value` is not `neutral`."""
    match value:
        case Select(cond, then, other) if other is neutral:
            yield from conjuncts(cond)
            yield from _conditions(then, neutral)
        case Cast(Select(_, _, Const() as other) as inner, dtype) if cast(other, dtype) is neutral:
            yield from _conditions(inner, other)


def _span(a: Axis, conditions: list[Expr], ranges: Ranges) -> tuple[int, int]:
    """The first and last position of `a` at which the conditions can hold; (0, -1) if its extent is unknown."""
    if not isinstance(a.extent, Const):
        return 0, -1
    first, last = 0, int(a.extent.value) - 1
    for cond in conditions:
        match cond:
            case Op("lt" | "le" | "gt" | "ge" | "eq" as comparison, (left, right)) if left.dtype is i64:
                low, high = _bounds_on_axis(comparison, left - right, a, ranges)
                first = first if low is None else max(first, low)
                last = last if high is None else min(last, high)
    return first, last


def _bounds_on_axis(comparison: str, difference: Expr, a: Axis, ranges: Ranges) -> tuple[int | None, int | None]:
    """The bounds on `a` within which the difference can be below (`lt`), above (`gt`), ... zero; None if unbounded."""
    terms, rest = linear(difference)
    factor = terms.get(a.var, 0)
    left = {atom: c for atom, c in terms.items() if atom is not a.var}
    if not factor or any(a.var in set(atom.walk()) for atom in left):
        return None, None
    others = [(value_range(atom, ranges), c) for atom, c in left.items()]
    ends = [(least, most) if c > 0 else (most, least) for (least, most), c in others]
    scaled = [(x * c, y * c) for (x, y), (_, c) in zip(ends, others, strict=True) if x is not None and y is not None]
    if len(scaled) < len(others):
        return None, None
    least, most = (rest + sum(x[n] for x in scaled) for n in (0, 1))
    strict = 1 if comparison in ("lt", "gt") else 0
    low = high = None
    if comparison in ("lt", "le", "eq"):  # factor * a <= -least - strict
        bound = -least - strict
        low, high = (low, bound // factor) if factor > 0 else (-(bound // -factor), high)
    if comparison in ("gt", "ge", "eq"):  # factor * a >= -most + strict
        bound = -most + strict
        low, high = (-(-bound // factor), high) if factor > 0 else (low, -bound // -factor)
    return low, high
