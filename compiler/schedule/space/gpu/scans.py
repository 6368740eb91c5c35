"""Prefix sums on a GPU: along rows, by threads that exchange totals, or down columns, one per thread."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from compiler.analysis.nests import totalled
from compiler.ir import loop
from compiler.ir.expr import Const
from compiler.ir.multiples import power
from compiler.ir.statement import Init, Stmt
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.space.gpu.plan import MOST_THREADS, THREADS, WARP, Plan, collapse_rows, lanes
from compiler.schedule.space.members import Member, ranked, relative
from compiler.schedule.steps import Bind, Split, Step

ELEMENTS_PER_THREAD = 16  # elements per thread: four rounds of wide loads
LEAST_SCAN = 64  # a shorter scan takes one thread
LEAST_PART = 32  # elements of a column that a thread scans
SCAN_BLOCKS = 4  # blocks per multiprocessor, if rows are so few that they are scanned in parts
WARPS = (8, 1)  # warps per block, each with a row


def running_total(inside: tuple[Stmt, ...]) -> bool:
    """Whether rows hold exactly one scan that keeps a total, long enough for several threads."""
    match inside:
        case (Init(_, value), loop.For(extent=Const(int() as extent), kind="scan", body=body)):
            return bool(totalled(body)) and extent >= LEAST_SCAN and value.dtype.bits >= 32
    return False


def along_rows(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...], f: loop.For, count: int) -> Iterator[Member]:
    """Scans along rows: threads have adjacent elements and exchange totals; few long rows are split over blocks."""
    assert isinstance(f.extent, Const) and isinstance(inside[0], Init)
    name, before = collapse_rows(rows)
    extent, vector, target = int(f.extent.value), plan.vector_width(f, f.body), plan.target
    found: list[Member] = []
    if count > 1:
        least = cost.reduction_clocks(target, extent, ELEMENTS_PER_THREAD, WARP)
        shares = relative([cost.row_blocks_time(target, count, n) for n in WARPS])
        found += [
            Member(least * share, partial(_scan_by_warps, before, name, f.var, warps, vector))
            for warps, share in zip(WARPS, shares, strict=True)
        ]
    length = _elements_per_block(plan, extent, count)
    if count < target.cores:
        found += [
            Member(
                cost.reduction_clocks(target, n, ELEMENTS_PER_THREAD, THREADS),
                partial(_scan_in_parts, before, name, inside[0].name, f.var, n, vector),
            )
            for n in (length, 2 * length)
            if n < extent
        ]
    blocks = [*before, *([Bind(name, "blocks")] if name else [])]
    threads = 128
    while threads <= MOST_THREADS:
        bound = Bind(f.var, "lanes", lanes(threads, vector))
        found.append(
            Member(
                cost.reduction_clocks(target, extent, ELEMENTS_PER_THREAD, threads),
                partial(list[Step], [*blocks, bound]),
            )
        )
        threads *= 2
    return ranked(found)


def _elements_per_block(plan: Plan, extent: int, count: int) -> int:
    """Elements of a row that a block scans if several blocks share a row."""
    unit = THREADS * ELEMENTS_PER_THREAD
    return -(-extent * count // (SCAN_BLOCKS * plan.target.cores * unit)) * unit


def _scan_by_warps(before: list[Step], name: str, scan: str, warps: int, vector: int) -> list[Step]:
    block, warp = naming.pieces(name)
    steps = [*before, Split(name, warps, (block, warp)), Bind(block, "blocks"), Bind(warp, "warps")]
    return [*steps, Bind(scan, "lanes", lanes(WARP, vector))]


def _scan_in_parts(before: list[Step], name: str, total: str, var: str, length: int, vector: int) -> list[Step]:
    scan = naming.split_scan(total, var, length, (name,) if name else ())
    part, sums, after, first = scan.into
    wide = lanes(THREADS, vector)
    steps = [*before, scan, Bind(part, "blocks"), Bind(after, "blocks")]
    steps += [Bind(x, "blocks") for x in (*scan.rows, name) if name]
    return [*steps, Bind(sums, "lanes", wide), Bind(first, "lanes", lanes(THREADS, 1)), Bind(var, "lanes", wide)]


def down_columns(
    plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...], f: loop.For, count: int
) -> Iterator[Member]:
    """Scans down columns, a thread per column; if columns are few, several threads have parts of one."""
    assert isinstance(f.extent, Const) and isinstance(inside[0], Init)
    name, before = collapse_rows(rows)
    extent, cores = int(f.extent.value), plan.target.cores
    length = max(LEAST_PART, -(-extent * count // (SCAN_BLOCKS * cores * THREADS)))
    length = next((n for n in range(length, 2 * length) if extent % n == 0), length)
    most = min(power(count), power(count * extent // (length * cores) + 1) // 2)
    threads = max(WARP, min(THREADS, most))
    return ranked(
        Member(float(n or extent), partial(_scan_columns, before, name, inside[0].name, f.var, n, t))
        for n in dict.fromkeys(n if n < extent else 0 for n in (length, 2 * length, extent))
        for t in dict.fromkeys((threads, max(WARP, threads // 2), min(THREADS, 2 * threads)))
    )


def _scan_columns(before: list[Step], name: str, total: str, var: str, length: int, threads: int) -> list[Step]:
    """Steps for parts of `length` elements; 0 for whole columns."""
    steps, names = [*before], [name]
    if length:
        scan = naming.split_scan(total, var, length, (name,))
        part, _, after, _ = scan.into
        steps += [scan, Bind(part, "blocks"), Bind(after, "blocks")]
        names = [*scan.rows, name]
    for x in names:
        block, lane = naming.pieces(x)
        steps += [Split(x, threads, (block, lane)), Bind(block, "blocks"), Bind(lane, "lanes", lanes(threads, 1))]
    return steps
