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
_LANE_TYPES: tuple[DType, ...] = (i8, i16, i32)


def affine_lanes(e: Expr) -> tuple[Expr, Expr] | None:
    """Start and step of a vector of equidistant indices; None for other vectors."""
    match e:
        case k.Ramp(start, step, _):
            return start, Const(step, start.dtype)
        case k.Broadcast(arg, _):
            return arg, Const(0, arg.dtype)
        case Op("add" | "sub" as name, (a, b)):
            first, second = affine_lanes(a), affine_lanes(b)
            if first is not None and second is not None:
                return make(name, first[0], second[0]), make(name, first[1], second[1])
        case Op("mul", (a, k.Broadcast(factor))) | Op("mul", (k.Broadcast(factor), a)):
            inner = affine_lanes(a)
            if inner is not None:
                return inner[0] * factor, inner[1] * factor
    return None


def narrow_comparison(e: Expr, bits: int, ranges: Mapping[str, Range]) -> Expr | None:
    """The same comparison in lanes of at least `bits` and at most 32 bits; None if it may not fit.

    >>> from compiler.ir.expr import Var
    >>> j, row = k.Ramp(Var("j"), 1, 16), k.Broadcast(Var("row"), 16)
    >>> causal = narrow_comparison(make("le", j, row), 32, {"j": (0, 511), "row": (0, 511)})
    >>> causal is make("le", k.Ramp(Const(0, i32), 1, 16), k.Broadcast(cast(Var("row") - Var("j"), i32), 16))
    True
    >>> narrow_comparison(make("le", j, row), 32, {"j": (0, 511)})
    """
    comparison = _as_scalar_comparison(e)
    if comparison is None:
        return None
    name, step, other = comparison
    low, high = range_in(other, ranges)
    lanes = e.dtype.lanes
    extremes = (low, high, 0, step * (lanes - 1))
    for dtype in _LANE_TYPES:
        if dtype.bits >= bits and all(n is not None and abs(n) < 2 ** (dtype.bits - 1) for n in extremes):
            lane_offsets = k.Ramp(Const(0, dtype), step, lanes)
            return make(name, lane_offsets, k.Broadcast(cast(simplify(other, ranges), dtype), lanes))
    return None


def _as_scalar_comparison(e: Expr) -> tuple[str, int, Expr] | None:
    """A comparison as operator, step per lane, and the scalar that the multiples of the step are compared with."""
    match e:
        case Op(name, (a, b)) if name in _COMPARISONS and e.dtype.lanes > 1 and a.dtype.name == "i64":
            first, second = _start_and_step(a), _start_and_step(b)
            if first is None or second is None or first[1] == second[1]:
                return None
            return name, first[1] - second[1], second[0] - first[0]
    return None


def _start_and_step(e: Expr) -> tuple[Expr, int] | None:
    """The first lane of equidistant numbers, and their step."""
    match e:
        case Const(value, dtype):
            return Const(value, dtype.replace(lanes=1)), 0
    match affine_lanes(e):
        case start, Const(int() as step):
            return start, step
    return None
