"""Comparisons of affine index vectors, narrowed from 64 bits to the lane width of the values that they guard.

Kernel IR counts in 64 bits, but the lanes that a comparison decides about are mostly narrower. All terms equal in every
lane are moved to one side, as one scalar; if its range is known, as it is for indices, narrower lanes hold it.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.ir import kernel as k
from compiler.ir.dtype import DType, i8, i16, i32
from compiler.ir.expr import Const, Expr, Op, cast
from compiler.ir.expr import op as make
from compiler.ir.index import simplify
from compiler.ir.ranges import Range
from compiler.render.integer_ranges import range_in

_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_LANES: tuple[DType, ...] = (i8, i16, i32)


def line(e: Expr) -> tuple[Expr, Expr] | None:
    """Start and step of a vector of equidistant indices; None for other vectors."""
    match e:
        case k.Ramp(start, step, _):
            return start, Const(step, start.dtype)
        case k.Broadcast(arg, _):
            return arg, Const(0, arg.dtype)
        case Op("add" | "sub" as name, (a, b)):
            first, second = line(a), line(b)
            if first is not None and second is not None:
                return make(name, first[0], second[0]), make(name, first[1], second[1])
        case Op("mul", (a, k.Broadcast(by))) | Op("mul", (k.Broadcast(by), a)):
            found = line(a)
            if found is not None:
                return found[0] * by, found[1] * by
    return None


def in_lanes(e: Expr, bits: int, ranges: Mapping[str, Range]) -> Expr | None:
    """The same comparison in lanes of at least `bits` and at most 32 bits; None if it may not fit.

    >>> from compiler.ir.expr import Var
    >>> j, row = k.Ramp(Var("j"), 1, 16), k.Broadcast(Var("row"), 16)
    >>> causal = in_lanes(make("le", j, row), 32, {"j": (0, 511), "row": (0, 511)})
    >>> causal is make("le", k.Ramp(Const(0, i32), 1, 16), k.Broadcast(cast(Var("row") - Var("j"), i32), 16))
    True
    >>> in_lanes(make("le", j, row), 32, {"j": (0, 511)})
    """
    found = _of_places(e)
    if found is None:
        return None
    name, step, other = found
    low, high = range_in(other, ranges)
    lanes = e.dtype.lanes
    ends = (low, high, 0, step * (lanes - 1))
    for dtype in _LANES:
        if dtype.bits >= bits and all(n is not None and abs(n) < 2 ** (dtype.bits - 1) for n in ends):
            places = k.Ramp(Const(0, dtype), step, lanes)
            return make(name, places, k.Broadcast(cast(simplify(other, ranges), dtype), lanes))
    return None


def _of_places(e: Expr) -> tuple[str, int, Expr] | None:
    """A comparison as operator, step per lane, and the scalar that the multiples of the step are compared with."""
    match e:
        case Op(name, (a, b)) if name in _COMPARISONS and e.dtype.lanes > 1 and a.dtype.name == "i64":
            first, second = _started(a), _started(b)
            if first is None or second is None or first[1] == second[1]:
                return None
            return name, first[1] - second[1], second[0] - first[0]
    return None


def _started(e: Expr) -> tuple[Expr, int] | None:
    """The first lane of equidistant numbers, and their step."""
    match e:
        case Const(value, dtype):
            return Const(value, dtype.replace(lanes=1)), 0
    match line(e):
        case start, Const(int() as step):
            return start, step
    return None
