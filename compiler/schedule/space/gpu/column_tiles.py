"""Column reductions where a thread sums a tile over two loops, and loads operands constant along one of them once.

Such operands are the weights of a depthwise convolution with channels innermost.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from compiler.analysis import access
from compiler.analysis.nests import loop_ranges, size
from compiler.ir import loop
from compiler.ir.expr import Var
from compiler.ir.statement import Stmt
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.space.gpu.plan import THREADS, Plan
from compiler.schedule.space.gpu.reductions import ROWS_AHEAD, Reduction
from compiler.schedule.space.members import Member
from compiler.schedule.steps import Bind, Distribute, Reorder, Split, Step

TILES = (4, 7, 2)  # iterations of the outer of the two loops
MOST = 64  # sums per thread
FULL_OCCUPANCY_SUMS = 32  # sums per thread that leave enough registers for full occupancy
LOW_OCCUPANCY = 1.5  # slowdown with more sums, because fewer threads are resident


def space(
    plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...], found: Reduction, vector: int
) -> Iterator[Member]:
    """Tiles of `vector` neighbours by some iterations of the loop around them; none if no operand is shared."""
    if len(rows) < 2 or vector == 1:
        return
    outer, inner = rows[-2:]
    alike = _count_shared_operands(plan, rows, inside)
    target, places = plan.target, found.count // vector
    least = cost.reduction_clocks(target, found.extent, ROWS_AHEAD, 1)
    for tile in TILES:
        if alike and size(outer) % tile == 0 and size(inner) % vector == 0 and tile * vector <= MOST:
            asked = (tile + alike * vector) / (tile * (1 + alike * vector))
            busy = cost.underfill_slowdown(2 * target.cores * THREADS, places // tile)
            crowded = LOW_OCCUPANCY if tile * vector > FULL_OCCUPANCY_SUMS else 1.0
            yield Member(least * asked * busy * crowded, partial(_steps, rows, found, tile, vector, places // tile))


def _count_shared_operands(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...]) -> int:
    """Number of operands that do not move along the outer loop and are not contiguous along the inner one."""
    ranges = loop_ranges(rows)
    outer, inner = (access.strides(inside, Var(r.var), plan.tensors, ranges) for r in rows[-2:])
    return sum(a == 0 and b not in (0, 1) for a, b in zip(outer, inner, strict=True))


def _steps(rows: list[loop.For], found: Reduction, tile: int, vector: int, places: int) -> list[Step]:
    *others, outer, inner = (r.var for r in rows)
    steps: list[Step] = []
    (high, row), (wide, column) = naming.pieces(outer), naming.pieces(inner)
    steps += [Split(outer, tile, (high, row)), Split(inner, vector, (wide, column)), Reorder((high, wide, row, column))]
    place, along = naming.collapse((*others, high, wide), steps), naming.collapse(found.loops, steps)
    block, lane = naming.pieces(place)
    nests = Distribute(found.accumulator, (row, column), (row, column))
    steps += [Split(place, min(THREADS, places), (block, lane)), nests, Reorder((along, row, column))]
    steps += [Bind(name, "unroll") for name in (*nests.first, row, nests.last[0])]
    steps += [Bind(name, "vector") for name in (column, nests.last[1])]
    return [*steps, Bind(block, "blocks"), Bind(lane, "lanes", (("threads", THREADS),))]
