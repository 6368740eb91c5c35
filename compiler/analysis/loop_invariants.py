"""Loop-invariant values of a body of statements."""

from __future__ import annotations

from collections.abc import Collection

from compiler.ir.expr import Load, Op, names
from compiler.ir.statement import Init, Let, Stmt


def fixed(body: tuple[Stmt, ...], loops: Collection[str]) -> tuple[Let, ...]:
    """The named values that can be computed before `loops`: those that read no buffer and check nothing."""
    changing = {*loops} | {s.name for s in body if isinstance(s, Let | Init)}
    out: list[Let] = []
    for s in body:
        if isinstance(s, Let) and not names(s.value) & changing and not any(map(_must_not_move, s.value.walk())):
            out.append(s)
            changing.remove(s.name)
    return tuple(out)


def _must_not_move(n: object) -> bool:
    return isinstance(n, Load) or (isinstance(n, Op) and n.name == "require")
