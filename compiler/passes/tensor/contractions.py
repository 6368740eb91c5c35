"""Recognise contractions and their factors."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, loads
from compiler.ir.tensor import Axis, Equation, Reduce

LEAST_REUSE = 16  # multiplications per element that repay storing it, at worst a write and a read


@functools.lru_cache(maxsize=1 << 14)
def is_contraction(e: Equation) -> bool:
    """Whether `e` is a sum of products of two factors, each of which lacks a free axis that the other has."""
    match e:
        case Reduce(op="sum", axes=axes, value=value):
            factors = factors_of(value)
            if factors is None:
                return False
            left, right = ({a.name for a in axes if a.var in set(f.walk()) and is_long(a)} for f in factors)
            return bool(left - right) and bool(right - left)
    return False


def factors_of(value: Expr) -> tuple[Expr, Expr] | None:
    """The two factors of a product of data, under any conversions; None for other values."""
    while isinstance(value, Cast):
        value = value.arg
    match value:
        case Op("mul", (a, b)) if any(isinstance(n, Load) for n in a.walk()) and any(
            isinstance(n, Load) for n in b.walk()
        ):
            return a, b
    return None


def multiplies_concatenation(e: Equation) -> bool:
    """Whether a contraction multiplies elements of concatenated tensors often without computing on them first.

    No instruction copies a block of such elements, which come from several tensors.
    """
    if not isinstance(e, Reduce) or not is_contraction(e):
        return False
    return any(is_concatenation(f) and _reuse_count(f, e.axes) >= LEAST_REUSE for f in factors_of(e.value) or ())


def is_concatenation(value: Expr) -> bool:
    """Whether elements are selected from different tensors, as in a concatenation."""
    choices = [(n.then, n.other) for n in value.walk() if isinstance(n, Select)]
    choices += [(n.args[1], n.args[2]) for n in value.walk() if isinstance(n, Op) and n.name == "where"]
    parts = [({x.buffer for x in loads(a)}, {x.buffer for x in loads(b)}) for a, b in choices]
    return any(a and b and a != b for a, b in parts)


def _reuse_count(factor: Expr, axes: tuple[Axis, ...]) -> float:
    """The number of times that a contraction over these free axes multiplies each element of a factor, at least."""
    return count(a.extent for a in axes if a.var not in set(factor.walk()))


def count(extents: Iterable[Expr]) -> float:
    """The number of points; infinite if a size is unknown and none is 0."""
    sizes = [int(n.value) if isinstance(n, Const) else math.inf for n in extents]
    return 0 if 0 in sizes else math.prod(sizes)


def is_long(a: Axis) -> bool:
    return not (isinstance(a.extent, Const) and a.extent.value == 1)
