"""The shape of a loop nest: its rows, and the loops inside them."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir import loop
from compiler.ir.expr import Load, Var
from compiler.ir.statement import Stmt, Store


@dataclass(frozen=True)
class Row:
    """Neighbouring loops over rows made one: its name, its iterations, and the innermost loop as it was."""

    name: str
    extent: int
    last: loop.For


def rows_of(f: loop.For) -> tuple[list[loop.For], tuple[Stmt, ...]]:
    """The perfectly nested parallel loops from `f` inwards, and the body of the last."""
    rows: list[loop.For] = []
    body: tuple[Stmt, ...] = (f,)
    while len(body) == 1 and isinstance(body[0], loop.For) and body[0].kind == "parallel":
        rows.append(body[0])
        body = body[0].body
    return rows, body


def paths_of(body: tuple[Stmt, ...]) -> list[list[loop.For]]:
    """For every innermost loop the loops from `body` to it."""
    out: list[list[loop.For]] = []
    for s in body:
        if isinstance(s, loop.For):
            out += [[s, *path] for path in paths_of(s.body)] or [[s]]
    return out


def contiguous(strides: list[int | None]) -> float:
    """The share of accesses that touch consecutive elements or always the same one, of those that matter."""
    moving = [s for s in strides if s != 0]
    return sum(s == 1 for s in moving) / len(moving) if moving else 0.0


def used_as_value(body: tuple[Stmt, ...], loops: set[Var]) -> bool:
    """A loop variable occurs outside the index of a load or store."""

    def visible(n: object) -> bool:
        match n:
            case Load():
                return False
            case Store(_, _, value, _):
                return visible(value)
            case Var():
                return n in loops
        return any(visible(c) for c in n.children())  # type: ignore[attr-defined]

    return any(map(visible, body))
