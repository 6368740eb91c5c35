"""Factors of a contraction that are a load within the bounds of a buffer, and zero outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from compiler.ir.dtype import HALVES, STORAGE_ONLY, compute, i8, i64
from compiler.ir.expr import Cast, Expr, Load, Op, Select, both, cast, const, names, select
from compiler.ir.linear import Linear, linear
from compiler.ir.value_ranges import conjuncts


def unwidened(factor: Expr) -> Expr:
    """The factor before it was widened from a short float, guards included."""
    match factor:
        # Rounding back to the type that it was widened from changes nothing.
        case Cast(Cast(Select(cond, Cast(arg), other) as there, short)) if short in STORAGE_ONLY and arg.dtype is short:
            return Select(cond, arg, zero(arg)) if other is zero(there) else factor.arg
        case Cast(arg) if arg.dtype in STORAGE_ONLY:
            return arg
        case Select(cond, Cast(arg), other) if arg.dtype in STORAGE_ONLY and other is const(0, factor.dtype):
            return Select(cond, arg, zero(arg))
    return factor


def read_narrow(factor: Expr) -> Expr:
    """The factor without conversions from 16 bits, or from a byte, that CPU instructions do as they load."""
    match factor:
        case Cast(Cast(arg, half)) if half in HALVES and arg.dtype is i8:
            return arg
        case Cast(arg) if arg.dtype in (*STORAGE_ONLY, i8):
            return arg
    return factor


def zero(value: Expr) -> Expr:
    """Zero of the type of a value."""
    return cast(const(0, compute(value.dtype)), value.dtype)


def guarded(value: Expr, guards: Sequence[Expr]) -> Expr:
    """The value with more guards: zero where one of them does not hold."""
    conditions: Sequence[Expr] = ()
    match value:
        case Select(cond, then, other) if other is zero(value):
            conditions, value = tuple(conjuncts(cond)), then
    return select(every(*conditions, *guards), value, zero(value))


def every(*conditions: Expr) -> Expr:
    """The conjunction of conditions, without comparisons that are equivalent to an earlier one."""
    kept: list[Expr] = []
    for c in conditions:
        form = at_least_zero(c)
        if c not in kept and (form is None or form not in [at_least_zero(x) for x in kept]):
            kept.append(c)
    return both(*kept)


def block(factor: Expr, shapes: Mapping[str, tuple[Expr, ...]]) -> Load | None:
    """The load, if the factor is that load within the bounds of its buffer and zero outside, with no other guard."""
    match factor:
        case Load():
            return factor
        case Select(cond, Load(buffer, index) as load, other) if other is zero(factor):
            ends = zip(index, shapes[buffer], strict=True)
            bounds = [b for i, n in ends for b in (linear(i), linear(n - i - 1))]
            return load if all(at_least_zero(c) in bounds for c in conjuncts(cond)) else None
    return None


def steady(
    factor: Expr, shapes: Mapping[str, tuple[Expr, ...]], loops: Set[str]
) -> tuple[Load, tuple[Expr, ...]] | None:
    """The load, if the factor is that load within bounds, and its other guards, if those are the same for all
    iterations of `loops`: a tile of it is either there or zero. Else None."""
    apart: tuple[Expr, ...] = ()
    match factor:
        case Select(cond, Load() as there, other) if other is zero(factor):
            found = list(conjuncts(cond))
            apart = tuple(c for c in found if not names(c) & loops and block(select(c, there, other), shapes) is None)
            factor = select(both(*(c for c in found if c not in apart)), there, other)
    load = block(factor, shapes)
    return None if load is None else (load, apart)


def at_least_zero(cond: Expr) -> Linear | None:
    """The linear form that is at least 0 where a comparison of indices holds; None for other conditions."""
    match cond:
        case Op("ge" | "gt" | "le" | "lt" as how, (a, b)) if a.dtype is i64:
            form = a - b if how[0] == "g" else b - a
            return linear(form if how[1] == "e" else form - 1)
    return None
