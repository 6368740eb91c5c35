"""The schedule step `persist`: a grid of few blocks, each of which computes several tiles of a result."""

from __future__ import annotations

import math

from compiler.ir import tile
from compiler.ir.expr import Const, Expr, dim, op, select, static
from compiler.ir.rewrite import replaced
from compiler.ir.statement import Kernel, Let, Stmt
from compiler.passes.tile.nests import SERIAL, find_nest, loop_variables
from compiler.schedule.steps import Persist, ScheduleError


def persist(kernel: Kernel, step: Persist) -> Kernel:
    """`persist(("i", "j"), 4, into=("ij_block", "ij_turn", "ij"))`

    before:
        for i in blocks(6):
            for j in blocks(5):
                y[i, j] = x[i, j]
    after:
        for ij_block in blocks(4):
            for ij_turn in serial(8 if ij_block < 2 else 7):
                ij = ij_turn * 4 + ij_block
                i = ij // 5
                j = ij % 5
                y[i, j] = x[i, j]
    """
    around, nest = find_nest(kernel, step, step.loops)
    if around or any(f.bind.level != "blocks" or f.kind != "parallel" for f in nest):
        raise ScheduleError(step, "its loops must be parallel, over blocks, and the outermost ones")
    if step.blocks < 1 or not all(isinstance(f.extent, Const) for f in nest):
        raise ScheduleError(step, "there must be at least one block, and the extents of its loops be known")
    extents = [static(f.extent) for f in nest]
    total = math.prod(extents)
    blocks = min(step.blocks, total)
    block, turn, number = loop_variables(step, step.into, 3)
    turns: Expr = dim(total // blocks)
    if total % blocks:
        turns = select(op("lt", block, dim(total % blocks)), turns + 1, turns)
    body: tuple[Stmt, ...] = (Let(number.name, turn * blocks + block),)
    inside = total
    for f, extent in zip(nest, extents, strict=True):
        inside //= extent
        if len(nest) > 1:
            place = number // inside
            body += (Let(f.var, place if f is nest[0] else place % extent),)
    body += nest[-1].body
    made = tile.For(turn.name, turns, "parallel", SERIAL, body)
    made = tile.For(block.name, dim(blocks), "parallel", nest[0].bind, (made,))
    return kernel.replace(body=replaced(kernel.body, nest[0], (made,)))
