"""The shape of a loop nest: its rows, and the loops inside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from compiler.analysis import access
from compiler.ir import loop, tile
from compiler.ir.expr import Const, Load, Var
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, Init, Stmt, Store
from compiler.ir.tensor import Tensor

F = TypeVar("F", loop.For, tile.For)
Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class Row:
    """Neighbouring loops over rows made one: its name, its iterations, and the innermost loop as it was."""

    name: str
    extent: int
    last: loop.For


def perfect(of: type[F], body: Body, kinds: Collection[str] = ("parallel",)) -> tuple[list[F], Body]:
    """The loops of these kinds that are perfectly nested, from the outermost, and what the last of them holds."""
    loops: list[F] = []
    while len(body) == 1 and isinstance(f := body[0], of) and f.kind in kinds:
        loops.append(f)
        body = f.body
    return loops, body


def rows_of(f: loop.For) -> tuple[list[loop.For], Body]:
    """The perfectly nested parallel loops from `f` inwards, and the body of the last."""
    return perfect(loop.For, (f,))


def wrap(nest: Sequence[loop.For] | Sequence[tile.For], body: Body) -> Body:
    """`body` inside loops like these."""
    for f in reversed(nest):
        body = (f.replace(body=body),)
    return body


def accumulated(body: Body) -> dict[str, str]:
    """Scalars from outside that statements accumulate into, with their reductions."""
    found = [n for s in body for n in s.walk()]
    inside = {n.name for n in found if isinstance(n, Init)}
    return {n.name: n.op for n in found if isinstance(n, Accum) and n.name not in inside}


def overwrites_only(body: Body) -> bool:
    """What the statements store, they neither read nor add to."""
    found = [n for s in body for n in s.walk()]
    loaded = {n.buffer for n in found if isinstance(n, Load)}
    return all(n.op == "set" and n.buffer not in loaded for n in found if isinstance(n, Store))


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


def even(
    outer: loop.For, inner: loop.For, inside: tuple[Stmt, ...], tensors: dict[str, Tensor], ranges: dict[str, Range]
) -> bool:
    """Every address moves through two loops as through one."""
    if not isinstance(inner.extent, Const):
        return False
    i, j, n = Var(outer.var), Var(inner.var), int(inner.extent.value)
    inner_stride = access.strides(inside, j, tensors, ranges)
    outer_stride = access.strides(inside, i, tensors, ranges)
    if any(a is None or b is None or b != a * n for a, b in zip(inner_stride, outer_stride, strict=True)):
        return False
    return not used_as_value(inside, {i, j})
