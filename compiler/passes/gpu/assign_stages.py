"""Assign pipeline stages: which copies run ahead, and which loops producers run to prepare tiles."""

from __future__ import annotations

from itertools import groupby

from compiler.ir import tile
from compiler.ir.launches import is_bound
from compiler.ir.rewrite import statements
from compiler.ir.statement import Kernel, Program, Stmt, within
from compiler.passes.gpu import stages


def assign_stages(program: Program) -> Program:
    """Group statements into stages. Their order stays: a stage holds consecutive statements of one role."""
    return program.replace(kernels=tuple(map(_kernel, program.kernels)))


def _kernel(kernel: Kernel) -> Kernel:
    tiles = frozenset(n.tensor.name for n in within(kernel.body, tile.Alloc))

    def rule(s: Stmt) -> Stmt | None:
        if is_bound(s, "pipeline") and (stages.is_specialised(s) or dict(s.bind.args).get("depth", 1) > 1):
            return s.replace(body=_group_stages(s, s.body, tiles))
        return None

    return kernel.replace(body=statements(kernel.body, rule))


def _group_stages(f: tile.For, body: tuple[Stmt, ...], tiles: frozenset[str]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for role, group in groupby(body, lambda s: _role(s, stages.preparing_threads(f), tiles)):
        own = tuple(group)
        out += [tile.Stage(role, own)] if role else own
    return tuple(out)


def _role(s: Stmt, preparing: int, tiles: frozenset[str]) -> str:
    """The role of a statement, or "".

    It is "copy" for asynchronous copies from global memory, and "prepare" for loops over all producer threads but a
    warp's.
    """
    match s:
        case tile.Copy(_, source, how) if how != "plain" and source.buffer not in tiles:
            return "copy"
        case tile.For(bind=tile.Bind("lanes", args)) if preparing and dict(args).get("threads") == preparing:
            return "prepare"
    return ""
