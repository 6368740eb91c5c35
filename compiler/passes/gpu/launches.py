"""Which statements of a kernel are one launch, and how many threads its blocks have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.ir import tile
from compiler.ir.expr import Var
from compiler.ir.index import value_range
from compiler.ir.node import Node
from compiler.ir.statement import Accum, Init, Kernel, Let, Stmt, Store
from compiler.passes.gpu.fragments import WARP


def apart(kernel: Kernel) -> list[Kernel]:
    """A kernel for each nest over blocks where several statements follow each other, and for what is between them."""
    groups: list[list[Stmt]] = []
    for s in kernel.body:
        if is_bound(s, "blocks") or not groups or is_bound(groups[-1][0], "blocks"):
            groups.append([])
        groups[-1].append(s)
    if len(groups) < 2 or any(_scalars(a) & _used(b) for n, a in enumerate(groups) for b in groups[n + 1 :]):
        return [kernel]
    out = []
    for n, group in enumerate(groups):
        body = tuple(group)
        used = tile.buffers(body)
        params = tuple(p for p in kernel.params if p.name in used)
        changed = {x.buffer for x in _nodes(body) if isinstance(x, Store)}
        changed |= {x.target.buffer for x in _nodes(body) if isinstance(x, tile.Copy)}
        writes = tuple(w for w in kernel.writes if w in changed)
        out.append(kernel.replace(name=f"{kernel.name}_{n}", params=params, writes=writes, body=body))
    return out


def _nodes(body: Iterable[Stmt]) -> Iterator[Node]:
    return (n for s in body for n in s.walk())


def _scalars(body: Iterable[Stmt]) -> set[str]:
    return {s.name for s in body if isinstance(s, Let | Init)}


def _used(body: Iterable[Stmt]) -> set[str]:
    return {n.name for n in _nodes(body) if isinstance(n, Var | Accum)}


def is_bound(s: Stmt, level: str) -> bool:
    return isinstance(s, tile.For) and s.bind.level == level


def block_size(kernel: Kernel) -> int:
    """Threads of a block: what the loops over lanes, warps and columns ask for."""
    most = WARP
    for s in kernel.body:
        for n in s.walk():
            match n:
                case tile.For(bind=tile.Bind("lanes", args)):
                    most = max(most, dict(args).get("threads", WARP))
                case tile.For(bind=tile.Bind("columns", args)):
                    most = max(most, WARP * dict(args).get("warps", 1))
                case tile.For(extent=extent, bind=tile.Bind("warps")):
                    high = value_range(extent, {})[1]
                    most = max(most, WARP * (high or 1))
    return most
