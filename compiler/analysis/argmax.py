"""Recognise argmax and argmin: one loop finds the extreme value, a second loop its first position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.expr import Const, Expr, Op, Var, substitute
from compiler.ir.statement import Accum, Stmt


@dataclass(frozen=True)
class Extreme:
    """The scalar `total` reduces `value`, an expression of the loop variable `var`, by max or min."""

    total: str
    var: str
    value: Expr


def extreme(var: str, body: Sequence[Stmt]) -> Extreme | None:
    """The extreme value, if the loop does nothing but reduce to it; else None."""
    match body:
        case (Accum(total, "max" | "min", value),):
            return Extreme(total, var, value)
    return None


def sought(found: Extreme, var: str, body: Sequence[Stmt]) -> Const | None:
    """The value for "no position", if the loop finds the first position of the extreme value or of NaN; else None."""
    match body:
        case (Accum(name, "min", Op("where", (cond, Var(place), Const() as none))),) if (
            place == var
            and name != found.total
            and _compares_with_extreme(found, substitute(found.value, {Var(found.var): Var(var)}), cond)
        ):
            return none
    return None


def _compares_with_extreme(found: Extreme, value: Expr, cond: Expr) -> bool:
    match cond:
        case Op("or", (a, Op("isnan", (b,)))):
            return b is value and _compares_with_extreme(found, value, a)
        case Op("eq", (a, Var(total))):
            return a is value and total == found.total
    return False
