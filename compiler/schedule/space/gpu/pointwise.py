"""GPU kernels whose rows have no loops inside, or short ones: each row is one iteration of a thread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from compiler.analysis.nests import Row, even, iterations, loop_ranges, paths_of, size
from compiler.ir import loop
from compiler.ir.multiples import power
from compiler.ir.statement import Stmt
from compiler.ir.tensor import known_bytes
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu_threads as cost
from compiler.schedule.space.gpu import row_loops
from compiler.schedule.space.gpu.plan import THREADS, WARP, Plan, collapse_rows, lanes
from compiler.schedule.space.members import Member, priced, ranked
from compiler.schedule.steps import Bind, Collapse, Reorder, Split, Step
from compiler.targets.target import Target

UNROLLED = 128  # instructions per iteration up to which the compiler overlaps the loads of two iterations
WARPS = (8, 4, 2)  # warps per block, if one warp per row suffices
ROUNDS_PER_THREAD = (2, 1)  # iterations per thread: blocks that follow each other load while others compute


def space(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...]) -> Iterator[Member]:
    """Schedules by threads, iterations per thread, vector width, and rows per block with a warp each."""
    groups, collapsed = _grid(plan, rows, inside)
    *outer, last = groups
    loops = paths_of(inside)
    widest = 1 if loops else plan.vector_width(last.last, inside, _contiguous_iterations(plan, rows, inside))
    vectors = (widest, widest // 2) if widest > 1 else (1,)
    longest = max(WARP, power(-(-last.extent // widest)))  # threads beyond the last axis would idle
    choices = [
        (turns, threads, vector, 1)
        for turns in (ROUNDS_PER_THREAD[1:] if loops else ROUNDS_PER_THREAD)
        for threads in (256, 128, 64, 32)
        if threads <= min(THREADS // turns, 2 * longest)
        for vector in vectors
    ]
    if longest < THREADS and outer and not loops:
        choices += [(1, WARP, vector, warps) for warps in WARPS if outer[-1].extent % warps == 0 for vector in vectors]
    private_steps = plan.private_steps(last.name)
    inner_iterations = max((iterations(*path) for path in loops), default=1)
    elements, other = last.extent, math.prod(g.extent for g in outer)
    bytes_of = {b: n for b, n in cost.element_bytes(inside, plan.tensors).items() if b not in plan.private}
    memory_bytes = sum(
        min(known_bytes(plan.tensors[b]), elements * other * inner_iterations * n) for b, n in bytes_of.items()
    )
    cache_bytes, operations = (
        float(elements * other * inner_iterations * sum(bytes_of.values())),
        cost.operations(inside),
    )

    def price(turns: int, threads: int, vector: int, warps: int, target: Target) -> float:
        blocks = -(-elements // (threads * widest * turns)) * other // warps
        alone = turns if operations * widest > UNROLLED else 1
        issued = turns * inner_iterations * (len(bytes_of) * widest // vector + operations * widest)
        work = cost.Threads(
            blocks,
            threads * warps,
            memory_bytes,
            cache_bytes,
            float(alone * inner_iterations),
            float(issued),
            rounds=alone,
        )
        return cost.clocks(work, target)

    def steps(turns: int, threads: int, vector: int, warps: int) -> list[Step]:
        return [*collapsed, *_steps(outer, private_steps, last.name, threads, threads * widest * turns, vector, warps)]

    members = [priced(partial(price, *way), plan.target, partial(steps, *way)) for way in choices]
    if outer and not loops:
        members += row_loops.long_rows(plan, rows, iterations(*rows[:-1]))
    return ranked(members)


def _grid(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...]) -> tuple[list[Row], list[Step]]:
    """The rows as at most three axes of a grid; the last one is for threads."""
    ranges = loop_ranges(rows)
    groups: list[Row] = []
    steps: list[Step] = []
    for r in rows:
        extent = size(r)
        # Axes before the last may stay axes of the grid if the last is long enough to keep threads busy.
        if groups and (even(groups[-1].last, r, inside, plan.tensors, ranges) or _iterations_from(rows, r) < THREADS):
            steps.append(Collapse(groups[-1].name, r.var, groups[-1].name + r.var))
            groups[-1] = Row(groups[-1].name + r.var, groups[-1].extent * extent, r)
        else:
            groups.append(Row(r.var, extent, r))
    if len(groups) > 1 and groups[-1].extent < THREADS:
        name, steps = collapse_rows(rows)
        groups = [Row(name, iterations(*rows), rows[-1])]
    while len(groups) > 3:
        steps.append(Collapse(groups[0].name, groups[1].name, groups[0].name + groups[1].name))
        groups[:2] = [Row(groups[0].name + groups[1].name, groups[0].extent * groups[1].extent, groups[1].last)]
    return groups, steps


def _contiguous_iterations(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...]) -> int:
    """Iterations of the innermost loops that are contiguous in memory like one loop."""
    ranges = loop_ranges(rows)
    count = size(rows[-1])
    for outer, r in zip(rows[-2::-1], rows[:0:-1], strict=True):
        if not even(outer, r, inside, plan.tensors, ranges):
            break
        count *= size(outer)
    return count


def _steps(
    outer: list[Row], own: list[Step], name: str, threads: int, chunk: int, vector: int, warps: int
) -> list[Step]:
    """Steps for blocks of `threads` threads for each of `warps` rows."""
    block, lane = naming.pieces(name)
    bind = Bind(lane, "lanes", lanes(threads, vector))
    if warps == 1:
        grid = [Bind(g.name, "blocks") for g in outer]
        return [*grid, *own, Split(name, chunk, (block, lane)), Bind(block, "blocks"), bind]
    *first, last = (g.name for g in outer)
    rows, row = naming.pieces(last)
    split = [Split(last, warps, (rows, row)), Split(name, chunk, (block, lane)), Reorder((rows, block, row, lane))]
    return [*own, *split, *(Bind(g, "blocks") for g in (*first, rows, block)), Bind(row, "warps"), bind]


def _iterations_from(rows: list[loop.For], r: loop.For) -> int:
    """Iterations of a loop over rows together with all loops inside it."""
    return iterations(*rows[rows.index(r) :])
