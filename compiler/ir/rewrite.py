"""The one driver that rewrites trees: a rule says what stands in the place of a node, and all else stays what it is.

Both go from the leaves up, so that a rule sees what became of the nodes below; where it changes nothing, the same nodes
come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from compiler.ir.expr import Const, Expr, Load, N, Var, canonical
from compiler.ir.node import Node, mapped
from compiler.ir.statement import Stmt, Store


def statements(body: tuple[Stmt, ...], rule: Callable[[Any], Stmt | tuple[Stmt, ...] | None]) -> tuple[Stmt, ...]:
    """`body` with what `rule` makes of every statement: none, one or several; None leaves it.

    Expressions are not looked at.
    """

    def go(n: Node) -> Any:
        if not isinstance(n, Stmt):
            return n
        below = n.map(go)
        made = rule(below)
        return below if made is None else made

    new: tuple[Stmt, ...] = mapped(body, go)
    return new


def replaced(body: tuple[Stmt, ...], old: Stmt, new: Stmt | tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`body` with a statement, wherever it stands, replaced by none, one or several."""
    return statements(body, lambda s: new if s is old else None)


def bodies(body: tuple[Stmt, ...], rule: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...] | None]) -> tuple[Stmt, ...]:
    """`body` with what `rule` makes of it as a whole and of each body within; None leaves one."""

    def inside(s: Any) -> Stmt | None:
        made = rule(s.body) if "body" in type(s).fields else None
        return None if made is None else s.replace(body=made)

    within = statements(body, inside)
    made = rule(within)
    return within if made is None else made


def accesses(body: tuple[Stmt, ...], rule: Callable[[Any], Any]) -> tuple[Stmt, ...]:
    """`body` with what `rule` makes of every load and every store to a buffer; None leaves it."""
    return nodes(body, lambda n: rule(n) if isinstance(n, Load | Store) else None)


@overload
def nodes(tree: Expr, rule: Callable[[Any], Any]) -> Expr: ...
@overload
def nodes(tree: tuple[N, ...], rule: Callable[[Any], Any]) -> tuple[N, ...]: ...
def nodes(tree: Any, rule: Callable[[Any], Any]) -> Any:
    """`tree`, or each of a tuple, with what `rule` makes of every node; None leaves it, as its constructor folds it."""
    done: dict[Node, Any] = {}

    def go(n: Node) -> Any:
        if n not in done:
            new = n if type(n) in (Const, Var) else n.map(go)
            below = canonical(new)
            folded = below is not new and below in new.walk()  # to a part of it, which the rule has made already
            made = None if folded else rule(below)
            done[n] = below if made is None else made
        return done[n]

    return mapped(tree, go)
