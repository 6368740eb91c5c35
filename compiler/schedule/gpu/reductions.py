"""Schedules of kernels with one reduction: across the direction of memory, or along rows that are few and long.

A kernel that would leave most of the machine idle is split: blocks combine parts, and the last of them what all have
found, always in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.analysis.nests import perfect
from compiler.ir import loop
from compiler.ir.expr import Const
from compiler.ir.statement import Accum, Init, Let, Stmt, Store
from compiler.schedule import names as naming
from compiler.schedule.steps import Bind, Collapse, Reorder, Share, Split, Step

THREADS = 256
WARP = 32
ROWS_AHEAD = 8  # of a column that a thread loads before it adds them up
LEAST_COLUMN = 64  # elements of a column in a part
LEAST_ROW = 4096  # elements of a row in a part: four wide loads for each thread
PARTS_AHEAD = 64  # parts that a thread loads before it adds them up


@dataclass(frozen=True)
class Reduction:
    """`accumulator` combines over the perfectly nested `loops`, of `extent` iterations, for each of `count` rows."""

    accumulator: str
    rows: tuple[str, ...]
    count: int
    loops: tuple[str, ...]
    extent: int


def only(rows: list[loop.For], inside: tuple[Stmt, ...]) -> Reduction | None:
    """The one reduction of a body that has no other loop."""
    loops = [s for s in inside if isinstance(s, loop.For)]
    starts = [s for s in inside if isinstance(s, Init)]
    if len(loops) != 1 or len(starts) != 1 or not all(isinstance(s, loop.For | Init | Let | Store) for s in inside):
        return None
    nest, body = perfect(loop.For, (loops[0],), loop.KINDS)
    sizes = [int(f.extent.value) if isinstance(f.extent, Const) else 0 for f in (*rows, *nest)]
    plain = all(isinstance(s, Let | Accum) for s in body) and all(f.kind == "reduce" for f in nest)
    if not plain or not all(sizes) or inside.index(starts[0]) + 1 != inside.index(loops[0]):
        return None
    at = len(rows)
    return Reduction(starts[0].name, tuple(r.var for r in rows), math.prod(sizes[:at]), tuple(f.var for f in nest),
                     math.prod(sizes[at:]))  # fmt: skip


def merge(names: tuple[str, ...], steps: list[Step]) -> str:
    """All of some perfectly nested loops as one, whose name is returned."""
    name = names[0] if names else ""
    for inner in names[1:]:
        steps.append(Collapse(name, inner, name + inner))
        name += inner
    return name


def columns(found: Reduction, vector: int, cores: int) -> list[Step]:
    """Each thread has `vector` neighbouring columns.

    Where columns are few, threads of a block share their rows, and blocks take parts of them.
    """
    steps: list[Step] = []
    row, along = merge(found.rows, steps), merge(found.loops, steps)
    while found.count // vector < WARP and vector > 1:
        vector //= 2
    outer, inner = (row, "") if vector == 1 else naming.pieces(row)
    if inner:
        steps.append(Split(row, vector, (outer, inner)))
    places = found.count // vector
    parts, sharers = 1, 1
    together = next((w for w in (32, 16, 8) if places % w == 0), 0)
    if places < 2 * cores * THREADS:
        wanted = 2 * cores * (together or THREADS)
        parts = _parts_of_columns(found.extent, places, wanted)
        sharers = _sharers(found.extent // parts, THREADS // together) if together else 1
    side = together if sharers > 1 else min(THREADS, places)
    lanes = (("threads", max(WARP, 1 << (side * sharers - 1).bit_length())),)
    length = found.extent // (parts * sharers)
    ahead = next(n for n in (ROWS_AHEAD, 4, 2, 1) if length % n == 0)
    turns = naming.pieces(along)
    block, lane = naming.pieces(outer)
    steps.append(Split(outer, side, (block, lane)))
    rows = (lane, inner) if inner else (lane,)
    blocks = naming.share(found.accumulator, along, parts, rows, "device")
    threads = naming.share(found.accumulator, along, sharers, rows, "shared")
    steps += [*([blocks] if parts > 1 else []), *([threads] if sharers > 1 else [])]
    nests = naming.distribute(found.accumulator, (inner,))
    if inner:
        steps.append(nests)
    if ahead > 1:
        steps.append(Split(along, ahead, turns))
    if inner:
        steps.append(Reorder((*(turns if ahead > 1 else (along,)), inner)))
    if ahead > 1:
        steps.append(Bind(turns[-1], "unroll"))
    if inner:
        steps += [Bind(nests.first[0], "unroll"), Bind(inner, "vector"), Bind(nests.last[0], "vector")]
    steps.append(Bind(block, "blocks"))
    if sharers > 1:
        lane_of = threads.into[0] + lane
        steps += [Collapse(threads.into[0], lane, lane_of), Bind(lane_of, "lanes", lanes), *_combined(threads, lanes)]
    else:
        steps.append(Bind(lane, "lanes", lanes))
    if parts > 1:
        steps += [Bind(blocks.into[0], "blocks"), *_combined(blocks, lanes)]
    return steps


def _sharers(extent: int, most: int) -> int:
    """Threads that share a column: as many as divide it and leave each enough to have loads in flight."""
    return next(n for n in (most, most // 2, most // 4, 1) if n == 1 or (extent % n == 0 and extent // n >= 4))


def _combined(shared: Share, lanes: tuple[tuple[str, int], ...]) -> list[Step]:
    """A thread for each column adds up what its parts are."""
    steps: list[Step] = []
    total = merge(shared.behind, steps)
    steps.append(Bind(total, "lanes", lanes))
    return [*steps, Bind(shared.into[1], "unroll")] if shared.parts <= PARTS_AHEAD else steps


def _parts_of_columns(extent: int, places: int, wanted: int) -> int:
    """The least divisor of the extent that keeps enough threads busy, or the largest that leaves some to add up."""
    most = max(1, extent // LEAST_COLUMN)
    found = [d for d in range(1, most + 1) if extent % d == 0 and (d == 1 or extent // d % 2 == 0 or extent % 2)]
    return next((d for d in found if places * d >= wanted), found[-1])


def split_rows(found: Reduction, vector: int, cores: int) -> list[Step] | None:
    """Each row goes to several blocks; None where there are enough rows, or they are too short for that."""
    parts = min(-(-2 * cores // max(1, found.count)), found.extent // LEAST_ROW)
    if parts < 2 or 2 * found.count > cores:
        return None
    steps: list[Step] = []
    row, along = merge(found.rows, steps), merge(found.loops, steps)
    even = next((p for p in range(parts, parts // 2, -1) if found.extent % (p * vector) == 0), 0)
    shared, inner = along, along
    if even:
        parts = even
    else:
        unit = THREADS * vector
        chunk = -(-found.extent // (parts * unit)) * unit
        parts = -(-found.extent // chunk)
        shared, inner = naming.pieces(along)
        steps.append(Split(along, chunk, (shared, inner)))
    made = naming.share(found.accumulator, shared, parts, (), "device")
    steps.append(made)
    steps += [Bind(name, "blocks") for name in (row, made.into[0]) if name]
    threads = (("threads", THREADS),)
    lanes = (*threads, ("vector", vector)) if vector > 1 else threads
    return [*steps, Bind(inner, "lanes", lanes), Bind(made.into[1], "lanes", threads)]
