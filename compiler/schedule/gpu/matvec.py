"""A loop nest that multiplies a matrix by a vector and a target with threads in, the schedule that reads it once out.

A matrix that is contiguous along the sum is read by a warp or a block a row, as any reduction. One that is contiguous
along the result is read by threads side by side, each with its own column; so that there are enough of them, the sum
goes in parts to several blocks.
"""

from __future__ import annotations

import math

from compiler.ir import loop
from compiler.ir.expr import Var, loads, names
from compiler.ir.index import Range, extent_range
from compiler.ir.statement import Kernel
from compiler.ir.tensor import Tensor
from compiler.schedule import access
from compiler.schedule.contraction import Contraction, recognise
from compiler.schedule.gpu.parts import axis, size
from compiler.schedule.steps import Bind, Collapse, Reorder, Schedule, Split, SplitK, Step
from compiler.targets.target import Target

THREADS = 128  # columns of a block: each row of them is a few whole lines of memory
UNDER_WAY = 8  # rows that a thread loads before it needs the first: hides the latency of memory at half occupancy
SHORTEST = 64  # rows of a part: fewer take less time than the launch that adds parts up
BLOCKS = 8  # for each multiprocessor: with so many threads each, half of what it can hold
MOST_PARTS = 64
LEAST = 64  # shorter sums are left to one thread each


def choose(kernel: Kernel, target: Target) -> Schedule | None:
    """A schedule for `kernel`, or None if it is no product of a vector and a matrix that is contiguous along the
    result."""
    c = recognise(kernel)
    if c is None or len(c.depth) != 1 or size(c.depth[0]) < LEAST:
        return None
    column = _column(c, {p.name: p for p in kernel.params})
    if column is None:
        return None
    around = [f for f in c.rows if f is not column]
    k, columns = c.depth[0], size(column)
    threads = min(THREADS, -(-columns // target.warp) * target.warp)
    blocks = -(-columns // threads) * math.prod(map(size, around))
    parts = 1
    while _divides(size(k), 2 * parts) and 2 * parts * blocks <= BLOCKS * target.cores and parts < MOST_PARTS:
        parts *= 2
    steps: list[Step] = []
    if around and c.rows[-1] is not column:
        steps.append(Reorder((*(f.var for f in around), column.var)))
    batch = axis(around).name
    name = around[0].var if around else ""
    for f in around[1:]:
        steps.append(Collapse(name, f.var))
        name += f.var
    if parts > 1:
        steps += [SplitK(c.accumulator, k.var, parts), Bind(f"{k.var}_part", "blocks")]
    for end in ("_sum", "") if parts > 1 else ("",):
        steps += [Bind(f"{batch}{end}", "blocks")] if batch else []
        steps += [Split(f"{column.var}{end}", threads), Bind(f"{column.var}{end}0", "blocks")]
        steps.append(Bind(f"{column.var}{end}1", "lanes", (("threads", threads),)))
    if size(k) // parts % UNDER_WAY == 0:
        steps += [Split(k.var, UNDER_WAY), Bind(f"{k.var}1", "unroll")]
    return Schedule(tuple(steps))


def _divides(length: int, parts: int) -> bool:
    return length % parts == 0 and length // parts >= SHORTEST


def _column(c: Contraction, tensors: dict[str, Tensor]) -> loop.For | None:
    """The loop along which the matrix is contiguous, if it is one over rows that the other factor does not see."""
    ranges: dict[str, Range] = {f.var: extent_range(f.extent) for f in (*c.rows, *c.depth)}
    long = [f for f in c.rows if size(f) > 1]
    for matrix, vector in ((c.left, c.right), (c.right, c.left)):
        own = [f for f in long if f.var in names(matrix) and f.var not in names(vector)]
        other = [f for f in long if f.var in names(vector) and f.var not in names(matrix)]
        if not own or other:
            continue
        strides = [
            access.stride(access.address(x.index, tensors[x.buffer], ranges), Var(own[-1].var)) for x in loads(matrix)
        ]
        return own[-1] if strides and all(s == 1 for s in strides) else None
    return None
