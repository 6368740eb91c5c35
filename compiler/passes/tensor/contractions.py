"""Which equations are contractions, and their factors."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, loads
from compiler.ir.tensor import Axis, Equation, Reduce

OFTEN = 16  # times that an element is multiplied: the worst of storing it is a write and a read of it


@functools.lru_cache(maxsize=1 << 14)
def is_contraction(e: Equation) -> bool:
    """A sum of products of two factors, each of which lacks a free axis that the other has."""
    match e:
        case Reduce(op="sum", axes=axes, value=value):
            factors = factors_of(value)
            if factors is None:
                return False
            left, right = ({a.name for a in axes if a.var in set(f.walk()) and is_long(a)} for f in factors)
            return bool(left - right) and bool(right - left)
    return False


def factors_of(value: Expr) -> tuple[Expr, Expr] | None:
    """The two sides of a product of data, conversions aside."""
    while isinstance(value, Cast):
        value = value.arg
    match value:
        case Op("mul", (a, b)) if any(isinstance(n, Load) for n in a.walk()) and any(
            isinstance(n, Load) for n in b.walk()
        ):
            return a, b
    return None


def multiplies_joined(e: Equation) -> bool:
    """A contraction that multiplies often, as they are, elements of which some come from one tensor and some from
    another: no instruction copies a block of these."""
    if not isinstance(e, Reduce) or not is_contraction(e):
        return False
    return any(is_joined(f) and _times(f, e.axes) >= OFTEN for f in factors_of(e.value) or ())


def is_joined(value: Expr) -> bool:
    """Elements come from one tensor or from another."""
    choices = [(n.then, n.other) for n in value.walk() if isinstance(n, Select)]
    choices += [(n.args[1], n.args[2]) for n in value.walk() if isinstance(n, Op) and n.name == "where"]
    parts = [({x.buffer for x in loads(a)}, {x.buffer for x in loads(b)}) for a, b in choices]
    return any(a and b and a != b for a, b in parts)


def _times(factor: Expr, axes: tuple[Axis, ...]) -> float:
    """How often each element of a factor is multiplied at least."""
    return count(a.extent for a in axes if a.var not in set(factor.walk()))


def count(extents: Iterable[Expr]) -> float:
    """How many points there are; a size that is not known yet counts as large."""
    return math.prod(int(n.value) if isinstance(n, Const) else math.inf for n in extents)


def is_long(a: Axis) -> bool:
    return not (isinstance(a.extent, Const) and a.extent.value == 1)
