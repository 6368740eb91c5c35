"""Kernels of Tile IR in, kernels of which each is one launch out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.ir import tile
from compiler.ir.expr import Var
from compiler.ir.node import Node
from compiler.ir.statement import Accum, Init, Kernel, Let, Program, Stmt, Store
from compiler.passes.gpu import block_groups
from compiler.passes.gpu.block_groups import is_bound


def launches(program: Program) -> Program:
    """A kernel of several nests over blocks that follow each other becomes one for each of them.

    Blocks that make parts of one result together stay in one launch.
    """
    made = ([kernel] if block_groups.split(kernel.body) else _apart(kernel) for kernel in program.kernels)
    return program.replace(kernels=tuple(part for parts in made for part in parts))


def _apart(kernel: Kernel) -> list[Kernel]:
    """A kernel for each nest over blocks where several statements follow each other, and for what is between them."""
    nests: list[list[Stmt]] = []
    for s in kernel.body:
        if is_bound(s, "blocks") or not nests or is_bound(nests[-1][0], "blocks"):
            nests.append([])
        nests[-1].append(s)
    if len(nests) < 2 or any(_scalars(a) & _used(b) for n, a in enumerate(nests) for b in nests[n + 1 :]):
        return [kernel]
    out = []
    for n, nest in enumerate(nests):
        body = tuple(nest)
        used = tile.buffers(body)
        params = tuple(p for p in kernel.params if p.name in used)
        changed = {x.buffer for x in _nodes(body) if isinstance(x, Store)}
        changed |= {x.target.buffer for x in _nodes(body) if isinstance(x, tile.Copy)}
        writes, past = (tuple(w for w in some if w in changed) for some in (kernel.writes, kernel.past))
        once = tuple(b for b in kernel.once if b in used)
        name = f"{kernel.name}_part{n}"
        out.append(
            kernel.replace(name=name, params=params, writes=writes, body=body, whole=kernel.name, once=once, past=past)
        )
    return out


def _nodes(body: Iterable[Stmt]) -> Iterator[Node]:
    return (n for s in body for n in s.walk())


def _scalars(body: Iterable[Stmt]) -> set[str]:
    return {s.name for s in body if isinstance(s, Let | Init)}


def _used(body: Iterable[Stmt]) -> set[str]:
    return {n.name for n in _nodes(body) if isinstance(n, Var | Accum)}
