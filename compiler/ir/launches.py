"""How a kernel of Tile IR divides into launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard

from compiler.ir import tile
from compiler.ir.expr import Var
from compiler.ir.node import Node
from compiler.ir.statement import Accum, Init, Let, Stmt, within
from compiler.ir.value_ranges import value_range

Body = tuple[Stmt, ...]

WARP = 32  # threads per warp


def is_bound(s: object, level: str) -> TypeGuard[tile.For]:
    """Whether `s` is a loop bound to that level."""
    return isinstance(s, tile.For) and s.bind.level == level


def cluster_loop(body: Body) -> tile.For | None:
    """The loop over the blocks of a cluster, if there is one."""
    return next((f for f in within(body, tile.For) if f.bind.level == "cluster"), None)


def block_size(body: Body) -> int:
    """Threads per block: the most that a loop over lanes, warps or columns uses, at least a warp."""
    most = WARP
    for s in body:
        for n in s.walk():
            match n:
                case tile.For(bind=tile.Bind("lanes", args)):
                    most = max(most, dict(args).get("threads", WARP))
                case tile.For(bind=tile.Bind("columns", args)):
                    most = max(most, WARP * dict(args).get("warps", 1))
                case tile.For(extent=extent, bind=tile.Bind("warps")):
                    most = max(most, WARP * (value_range(extent, {})[1] or 1))
    return most


def apart(body: Body) -> list[Body]:
    """The body divided into nests over blocks and the statements between them.

    It stays one body if blocks compute parts of one result together, or if a scalar passes from one nest to another.
    """
    nests: list[list[Stmt]] = []
    for s in body:
        if is_bound(s, "blocks") or not nests or is_bound(nests[-1][0], "blocks"):
            nests.append([])
        nests[-1].append(s)
    if _computes_parts(body) or any(_scalars(a) & _used_names(b) for n, a in enumerate(nests) for b in nests[n + 1 :]):
        return [body]
    return [tuple(nest) for nest in nests]


def _computes_parts(body: Body) -> bool:
    match body:
        case (tile.Alloc(space="cluster" | "device"), parts, *_):
            return is_bound(parts, "blocks")
    return False


def nodes(body: Iterable[Stmt]) -> Iterator[Node]:
    return (n for s in body for n in s.walk())


def _scalars(body: Iterable[Stmt]) -> set[str]:
    return {s.name for s in body if isinstance(s, Let | Init)}


def _used_names(body: Iterable[Stmt]) -> set[str]:
    return {n.name for n in nodes(body) if isinstance(n, Var | Accum)}
