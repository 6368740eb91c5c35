"""Schedules of matmuls on a GPU without tensor instructions.

The threads of a block form a square over a tile of the result; each has every 16th row and column. For each step of the
sum a thread loads its elements of both factors, adjacent for adjacent threads, and multiplies all with all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from compiler.analysis import access
from compiler.analysis.nests import loop_ranges, size
from compiler.ir import loop
from compiler.ir.expr import Var, names
from compiler.ir.statement import Kernel, Store
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import Contraction, recognise
from compiler.schedule.cost import gpu as cost
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Collapse, Distribute, Reorder, Split, Step
from compiler.targets.target import Target

# A thread has at most 8 rows and 8 columns: 64 sums and their operands fit in its registers.
SIDE = 16  # threads along either side of a block: half a warp loads 64 adjacent bytes of f32
LEAST_DEPTH = 16  # of a sum
TILE_SIDES = (8, 4, 2, 1)  # rows, or columns, per thread
PARTS = (1, 2, 4, 8, 16)  # of a sum (split-k)
LEAST_PART = 128  # steps per part
UNROLL_STEPS = (8, 4, 2, 1)  # unrolled steps of the sum: two sectors of an operand that is contiguous along it


def space(kernel: Kernel, target: Target) -> Iterator[Member] | None:
    """Tiles for `kernel`; None if it is no matmul, or threads do not divide its rows and columns evenly."""
    c = recognise(kernel)
    found = _rows_and_columns(c, kernel) if c is not None else None
    if c is None or found is None or len(c.depth) != 1 or size(c.depth[0]) < LEAST_DEPTH:
        return None
    m, n = found
    if size(m) % SIDE or size(n) % SIDE:
        return None
    rows, columns, depth = size(m) // SIDE, size(n) // SIDE, size(c.depth[0])
    batch = math.prod(size(f) for f in c.rows if f not in (m, n))
    ways = [
        (down, across, parts)
        for down in TILE_SIDES
        for across in TILE_SIDES
        for parts in PARTS
        if rows % down == 0 and columns % across == 0
        if parts == 1 or (depth % parts == 0 and depth // parts >= LEAST_PART)
    ]
    multiplies = rows * columns * batch * SIDE * SIDE * depth
    return ranked(
        Member(
            cost.simt_matmul_clocks(
                target, multiplies, rows // way[0] * (columns // way[1]) * batch * way[2], way, depth
            ),
            partial(_steps, c, m, n, *way),
        )
        for way in ways
    )


def _steps(c: Contraction, m: loop.For, n: loop.For, down: int, across: int, parts: int) -> list[Step]:
    """Steps for `down` rows and `across` columns per thread, and `parts` of the sum."""
    around = [f.var for f in c.rows if f not in (m, n)]
    i, j, k = m.var, n.var, c.depth[0].var
    steps: list[Step] = []
    if [*around, i, j] != [f.var for f in c.rows]:
        steps.append(Reorder((*around, i, j)))
    batch = naming.collapse(around, steps)
    outside = [batch] if batch else []
    (m_tile, m_in), (n_tile, n_in) = naming.pieces(i), naming.pieces(j)
    (m_own, m_lane), (n_own, n_lane) = naming.pieces(m_in), naming.pieces(n_in)
    steps += [Split(i, SIDE * down, (m_tile, m_in)), Split(j, SIDE * across, (n_tile, n_in))]
    steps += [Reorder((m_tile, n_tile, m_in, n_in))]
    steps += [Split(m_in, SIDE, (m_own, m_lane)), Split(n_in, SIDE, (n_own, n_lane))]
    steps += [Reorder((m_lane, n_lane, m_own, n_own))]
    thread, own = m_lane + n_lane, (m_own, n_own)
    steps.append(Collapse(m_lane, n_lane, thread))
    lanes = (("threads", SIDE * SIDE),)
    if parts > 1:
        # The parts of one element are adjacent for adjacent threads.
        shared = naming.split_reduction(c.accumulator, k, parts, (*own, thread), "device")
        *own_sums, thread_sum = shared.combining
        steps += [Reorder((*own, thread)), shared, Reorder((thread, *own)), Reorder((thread_sum, *own_sums))]
        steps += [Bind(shared.into[0], "blocks"), Bind(thread_sum, "lanes", lanes), Bind(shared.into[1], "unroll")]
        steps += [Bind(v, "unroll") for v in own_sums]
    steps += [Bind(v, "blocks") for v in (*outside, m_tile, n_tile)]
    steps.append(Bind(thread, "lanes", lanes))
    nests = Distribute(c.accumulator, own, own, "registers")
    steps.append(nests)
    unrolled = next(u for u in UNROLL_STEPS if size(c.depth[0]) // parts % u == 0)
    (each, step) = naming.pieces(k)
    steps += [Split(k, unrolled, (each, step)), Reorder((each, step, *own)), Bind(step, "unroll")]
    steps += [Bind(v, "unroll") for v in (*own, *nests.first, *nests.last)]
    return steps


def _rows_and_columns(c: Contraction, kernel: Kernel) -> tuple[loop.For, loop.For] | None:
    """The innermost loops that only one factor depends on: rows, then columns, along which the result is contiguous."""
    tensors = {p.name: p for p in kernel.params}
    ranges = loop_ranges(c.loops)
    left, right = names(c.left), names(c.right)
    left_only = [f for f in c.rows if f.var in left and f.var not in right and size(f) > 1]
    right_only = [f for f in c.rows if f.var in right and f.var not in left and size(f) > 1]
    if not left_only or not right_only:
        return None
    stores = [s for s in c.after if isinstance(s, Store)]
    along = {
        f.var
        for f in (left_only[-1], right_only[-1])
        for s in stores
        if access.stride(access.address(s.index, tensors[s.buffer], ranges), Var(f.var)) == 1
    }
    return (right_only[-1], left_only[-1]) if left_only[-1].var in along else (left_only[-1], right_only[-1])
