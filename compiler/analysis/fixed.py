"""A body of statements in; the values that it names which are the same in every iteration of loops around it out."""

from __future__ import annotations

from collections.abc import Collection

from compiler.ir.expr import Load, Op, names
from compiler.ir.statement import Init, Let, Stmt


def fixed(body: tuple[Stmt, ...], loops: Collection[str]) -> tuple[Let, ...]:
    """What could be computed before these loops, of what reads no buffer and checks nothing."""
    changing = {*loops} | {s.name for s in body if isinstance(s, Let | Init)}
    out: list[Let] = []
    for s in body:
        if isinstance(s, Let) and not names(s.value) & changing and not any(map(_stays, s.value.walk())):
            out.append(s)
            changing.remove(s.name)
    return tuple(out)


def _stays(n: object) -> bool:
    return isinstance(n, Load) or (isinstance(n, Op) and n.name == "require")
