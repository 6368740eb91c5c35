"""Kernels with one reduction on a GPU: across the direction of memory, or along few long rows.

A kernel that would leave most of the machine idle is split: blocks reduce parts, and the last block combines the
partial results, always in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from compiler.analysis.nests import perfect
from compiler.ir import loop
from compiler.ir.expr import Const
from compiler.ir.statement import Accum, Init, Let, Stmt, Store
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.space.members import Member, relative
from compiler.schedule.steps import Bind, Collapse, Distribute, Reorder, Split, SplitReduction, Step
from compiler.targets.target import Target

THREADS = 256
WARP = 32
NARROW = 64  # adjacent threads per block, as an alternative to as many as possible
ROWS_AHEAD = 8  # elements of a column that a thread loads before it adds them up
LEAST_COLUMN = 64  # elements of a column per part
LEAST_ROW = 4096  # elements of a row per part: four wide loads per thread
ISSUE_COST = 0.1  # issue cost of a load, relative to a thread's work for one of its columns
PARTS_AHEAD = 64  # partial results that a thread loads before it adds them up


@dataclass(frozen=True)
class Reduction:
    """`accumulator` reduces over perfectly nested `loops` with `extent` iterations, for each of `count` rows."""

    accumulator: str
    rows: tuple[str, ...]
    count: int
    loops: tuple[str, ...]
    extent: int


def single_reduction(rows: list[loop.For], inside: tuple[Stmt, ...]) -> Reduction | None:
    """The only reduction of a body that has no other loop; else None."""
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


def columns(found: Reduction, vector: int, target: Target) -> Iterator[Member]:
    """Schedules where each thread has `vector` adjacent columns.

    If columns are few, threads of a block share the elements of a column, and blocks reduce parts of them.
    """
    while found.count // vector < WARP and vector > 1:
        vector //= 2
    column_groups = found.count // vector
    columns_per_block = next((w for w in (32, 16, 8) if column_groups % w == 0), 32 if column_groups > WARP else 0)
    wanted_threads = 2 * target.cores * (columns_per_block or THREADS)
    has_few_columns = column_groups < 2 * target.cores * THREADS
    for parts in _parts_of_columns(found.extent, column_groups, wanted_threads) if has_few_columns else [1]:
        sharers = (
            _sharer_counts(found.extent // parts, THREADS // columns_per_block)
            if has_few_columns and columns_per_block
            else [1]
        )
        shares = relative([cost.reduction_clocks(target, found.extent // parts, 1, n) for n in sharers])
        least = cost.reduction_clocks(target, found.extent, ROWS_AHEAD, 1) * cost.underfill_slowdown(
            wanted_threads if has_few_columns else 1, column_groups * parts
        )
        for n, share in zip(sharers, shares, strict=True):
            if n > 1:
                yield Member(least * share, partial(_columns, found, vector, columns_per_block, parts, n))
                continue
            for threads in (THREADS, NARROW) if column_groups > NARROW else (THREADS,):
                spread = cost.underfill_slowdown(target.cores, parts * -(-column_groups // threads))
                yield Member(
                    least * share * spread, partial(_columns, found, vector, columns_per_block, parts, 1, threads)
                )
        if vector > 1:
            narrow = least * shares[0] * (1 + ISSUE_COST / vector)
            narrow *= cost.underfill_slowdown(target.cores, parts * -(-2 * column_groups // THREADS))
            yield Member(narrow, partial(_columns, found, vector // 2, 0, parts, 1))


def _columns(
    found: Reduction, vector: int, columns_per_block: int, parts: int, sharers: int, most: int = THREADS
) -> list[Step]:
    steps: list[Step] = []
    row, along = naming.collapse(found.rows, steps), naming.collapse(found.loops, steps)
    outer, inner = (row, "") if vector == 1 else naming.pieces(row)
    if inner:
        steps.append(Split(row, vector, (outer, inner)))
    column_groups = found.count // vector
    side = columns_per_block if sharers > 1 else min(most, column_groups)
    lanes = (("threads", max(WARP, 1 << (side * sharers - 1).bit_length())),)
    block, lane = naming.pieces(outer)
    steps.append(Split(outer, side, (block, lane)))
    rows = (lane, inner) if inner else (lane,)
    blocks = naming.split_reduction(found.accumulator, along, parts, rows, "device")
    threads = naming.split_reduction(found.accumulator, along, sharers, rows, "shared")
    steps += [*([blocks] if parts > 1 else []), *([threads] if sharers > 1 else [])]
    steps += _add_up(found.accumulator, along, found.extent // (parts * sharers), rows)
    steps.append(Bind(block, "blocks"))
    if sharers > 1:
        steps += _share_columns(threads, lane, lanes)
    else:
        steps.append(Bind(lane, "lanes", lanes))
    if parts > 1:
        steps += [Bind(blocks.into[0], "blocks"), *_combine_parts(blocks, sharers, lanes)]
    return steps


def _add_up(accumulator: str, along: str, length: int, rows: tuple[str, ...]) -> list[Step]:
    """Steps by which a thread adds up elements of its columns, several loads ahead and by vectors.

    `rows` are its loop over lanes and, if it has several columns, that over these.
    """
    _, inner = rows if len(rows) > 1 else (*rows, "")
    ahead = next(n for n in range(ROWS_AHEAD, 0, -1) if length % n == 0)
    pieces = naming.pieces(along)
    nests = Distribute(accumulator, (inner,), (inner,))
    steps: list[Step] = [nests] if inner else []
    if ahead > 1:
        steps.append(Split(along, ahead, pieces))
    if inner:
        steps.append(Reorder((*(pieces if ahead > 1 else (along,)), inner)))
    if ahead > 1:
        steps.append(Bind(pieces[-1], "unroll"))
    if inner:
        steps += [Bind(nests.first[0], "unroll"), Bind(inner, "vector"), Bind(nests.last[0], "vector")]
    return steps


def _share_columns(shared: SplitReduction, lane: str, lanes: tuple[tuple[str, int], ...]) -> list[Step]:
    """Steps by which the threads of a block share columns, of which `lane` numbers those side by side."""
    lane_of = shared.into[0] + lane
    return [Collapse(shared.into[0], lane, lane_of), Bind(lane_of, "lanes", lanes), *_combine_partials(shared, lanes)]


def _sharer_counts(extent: int, most: int) -> list[int]:
    """Numbers of threads that may share a column: divisors of `extent` with at least four loads each."""
    return [*[n for n in range(most, 1, -1) if extent % n == 0 and extent // n >= 4][:3], 1]


def _combine_partials(shared: SplitReduction, lanes: tuple[tuple[str, int], ...]) -> list[Step]:
    """Steps by which one thread per column adds up its partial results."""
    steps: list[Step] = []
    total = naming.collapse(shared.combining, steps)
    steps.append(Bind(total, "lanes", lanes))
    return [*steps, Bind(shared.into[1], "unroll")] if shared.parts <= PARTS_AHEAD else steps


def _combine_parts(blocks: SplitReduction, sharers: int, lanes: tuple[tuple[str, int], ...]) -> list[Step]:
    """Steps by which a block adds up the results of all blocks; of many, `sharers` threads do a part each.

    One thread adds up a result in some 22 clocks of an H200, of which it waits most.
    """
    together = next(n for n in range(sharers, 0, -1) if blocks.parts % n == 0)
    if blocks.parts <= PARTS_AHEAD or together == 1:
        return _combine_partials(blocks, lanes)
    shared = naming.split_reduction(blocks.total, blocks.into[1], together, blocks.combining, "shared")
    add_up = _add_up(blocks.total, blocks.into[1], blocks.parts // together, blocks.combining)
    return [shared, *add_up, *_share_columns(shared, blocks.combining[0], lanes)]


def _parts_of_columns(extent: int, places: int, wanted: int) -> list[int]:
    """Divisors of the extent around the smallest that keeps enough threads busy, with parts of useful length."""
    most = max(1, extent // LEAST_COLUMN)
    found = [d for d in range(1, most + 1) if extent % d == 0 and (d == 1 or extent // d % 2 == 0 or extent % 2)]
    at = next((n for n, d in enumerate(found) if places * d >= wanted), len(found) - 1)
    return found[max(0, at - 1) : at + 2]


def split_rows(found: Reduction, vector: int, target: Target) -> Iterator[Member]:
    """Schedules that split each row over several blocks; none if rows are many or too short."""
    most = min(-(-2 * target.cores // max(1, found.count)), found.extent // LEAST_ROW)
    if most < 2 or 2 * found.count > target.cores:
        return
    for parts in dict.fromkeys(max(2, most // n) for n in (1, 2, 4)):
        clocks = cost.reduction_clocks(target, -(-found.extent // parts), 1, THREADS)
        yield from (Member(clocks, partial(_split_rows, found, wide, parts)) for wide in dict.fromkeys((vector, 1)))


def _split_rows(found: Reduction, vector: int, parts: int) -> list[Step]:
    steps: list[Step] = []
    row, along = naming.collapse(found.rows, steps), naming.collapse(found.loops, steps)
    even_parts = next((p for p in range(parts, parts // 2, -1) if found.extent % (p * vector) == 0), 0)
    shared, inner = along, along
    if even_parts:
        parts = even_parts
    else:
        unit = THREADS * vector
        chunk = -(-found.extent // (parts * unit)) * unit
        parts = -(-found.extent // chunk)
        shared, inner = naming.pieces(along)
        steps.append(Split(along, chunk, (shared, inner)))
    split = naming.split_reduction(found.accumulator, shared, parts, (), "device")
    steps.append(split)
    steps += [Bind(name, "blocks") for name in (row, split.into[0]) if name]
    threads = (("threads", THREADS),)
    lanes = (*threads, ("vector", vector)) if vector > 1 else threads
    return [*steps, Bind(inner, "lanes", lanes), Bind(split.into[1], "lanes", threads)]
