"""Two loops over the same elements, the first for their extreme and the second for where it is first met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.expr import Const, Expr, Op, Var, substitute
from compiler.ir.statement import Accum, Stmt


@dataclass(frozen=True)
class Extreme:
    """`total`, the name of what combines `value`, an expression of the loop's variable `var`."""

    total: str
    var: str
    value: Expr


def extreme(var: str, body: Sequence[Stmt]) -> Extreme | None:
    """What a loop finds that does nothing but look for the largest or the least element."""
    match body:
        case (Accum(total, "max" | "min", value),):
            return Extreme(total, var, value)
    return None


def sought(found: Extreme, var: str, body: Sequence[Stmt]) -> Const | None:
    """What stands for no place, in a loop that looks for the first place of the extreme or of NaN; None for another."""
    match body:
        case (Accum(name, "min", Op("where", (cond, Var(place), Const() as none))),) if (
            place == var
            and name != found.total
            and _is(found, substitute(found.value, {Var(found.var): Var(var)}), cond)
        ):
            return none
    return None


def _is(found: Extreme, value: Expr, cond: Expr) -> bool:
    match cond:
        case Op("or", (a, Op("isnan", (b,)))):
            return b is value and _is(found, value, a)
        case Op("eq", (a, Var(total))):
            return a is value and total == found.total
    return False
