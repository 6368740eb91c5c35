"""Drivers that rewrite trees by a rule: the rule's result replaces a node, or None keeps it.

They work bottom-up, so that a rule sees rewritten children. If a rule changes nothing, the same nodes are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from compiler.ir.expr import Const, Expr, Load, N, Var, canonical
from compiler.ir.node import Node, mapped
from compiler.ir.statement import Stmt, Store


def statements(body: tuple[Stmt, ...], rule: Callable[[Any], Stmt | tuple[Stmt, ...] | None]) -> tuple[Stmt, ...]:
    """`body` with every statement replaced by what `rule` returns: none, one or several; None keeps it.

    Expressions are not visited.
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
    """`body` with all occurrences of a statement replaced by none, one or several."""
    return statements(body, lambda s: new if s is old else None)


def bodies(body: tuple[Stmt, ...], rule: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...] | None]) -> tuple[Stmt, ...]:
    """`body` with `rule` applied to it as a whole and to each nested body; None keeps one."""

    def inside(s: Any) -> Stmt | None:
        made = rule(s.body) if "body" in type(s).fields else None
        return None if made is None else s.replace(body=made)

    within = statements(body, inside)
    made = rule(within)
    return within if made is None else made


def accesses(body: tuple[Stmt, ...], rule: Callable[[Any], Any]) -> tuple[Stmt, ...]:
    """`body` with `rule` applied to every load and every store to a buffer; None keeps it."""
    return nodes(body, lambda n: rule(n) if isinstance(n, Load | Store) else None)


@overload
def nodes(tree: Expr, rule: Callable[[Any], Any]) -> Expr: ...
@overload
def nodes(tree: tuple[N, ...], rule: Callable[[Any], Any]) -> tuple[N, ...]: ...
def nodes(tree: Any, rule: Callable[[Any], Any]) -> Any:
    """`tree`, or each of a tuple, with `rule` applied to every node; None keeps it, folded by its constructor."""
    done: dict[Node, Any] = {}

    def go(n: Node) -> Any:
        if n not in done:
            new = n if type(n) in (Const, Var) else n.map(go)
            below = canonical(new)
            folded = below is not new and below in new.walk()  # to a subexpression, which the rule has already seen
            made = None if folded else rule(below)
            done[n] = below if made is None else made
        return done[n]

    return mapped(tree, go)
