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
from compiler.schedule.space.gpu.plan import MOST_THREADS, THREADS, WARP, Plan, lanes, merged_rows
from compiler.schedule.space.members import Member, ranked, relative
from compiler.schedule.steps import Bind, Split, Step

SCANNED = 16  # elements per thread: four rounds of wide loads
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


def along(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...], f: loop.For, count: int) -> Iterator[Member]:
    """Scans along rows: threads have adjacent elements and exchange totals; few long rows are split over blocks."""
    assert isinstance(f.extent, Const) and isinstance(inside[0], Init)
    name, before = merged_rows(rows)
    extent, vector, target = int(f.extent.value), plan.neighbours(f, f.body), plan.target
    found: list[Member] = []
    if count > 1:
        least = cost.waits(target, extent, SCANNED, WARP)
        shares = relative([cost.blocks_of_rows(target, count, n) for n in WARPS])
        found += [
            Member(least * share, partial(_by_warps, before, name, f.var, warps, vector))
            for warps, share in zip(WARPS, shares, strict=True)
        ]
    length = _part(plan, extent, count)
    if count < target.cores:
        found += [
            Member(
                cost.waits(target, n, SCANNED, THREADS), partial(_parts, before, name, inside[0].name, f.var, n, vector)
            )
            for n in (length, 2 * length)
            if n < extent
        ]
    blocks = [*before, *([Bind(name, "blocks")] if name else [])]
    threads = 128
    while threads <= MOST_THREADS:
        bound = Bind(f.var, "lanes", lanes(threads, vector))
        found.append(Member(cost.waits(target, extent, SCANNED, threads), partial(list[Step], [*blocks, bound])))
        threads *= 2
    return ranked(found)


def _part(plan: Plan, extent: int, count: int) -> int:
    """Elements of a row that a block scans if several blocks share a row."""
    unit = THREADS * SCANNED
    return -(-extent * count // (SCAN_BLOCKS * plan.target.cores * unit)) * unit


def _by_warps(before: list[Step], name: str, scan: str, warps: int, vector: int) -> list[Step]:
    block, warp = naming.pieces(name)
    steps = [*before, Split(name, warps, (block, warp)), Bind(block, "blocks"), Bind(warp, "warps")]
    return [*steps, Bind(scan, "lanes", lanes(WARP, vector))]


def _parts(before: list[Step], name: str, total: str, var: str, length: int, vector: int) -> list[Step]:
    scan = naming.split_scan(total, var, length, (name,) if name else ())
    part, sums, after, first = scan.into
    wide = lanes(THREADS, vector)
    steps = [*before, scan, Bind(part, "blocks"), Bind(after, "blocks")]
    steps += [Bind(x, "blocks") for x in (*scan.rows, name) if name]
    return [*steps, Bind(sums, "lanes", wide), Bind(first, "lanes", lanes(THREADS, 1)), Bind(var, "lanes", wide)]


def across(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...], f: loop.For, count: int) -> Iterator[Member]:
    """Scans down columns, a thread per column; if columns are few, several threads have parts of one."""
    assert isinstance(f.extent, Const) and isinstance(inside[0], Init)
    name, before = merged_rows(rows)
    extent, cores = int(f.extent.value), plan.target.cores
    length = max(LEAST_PART, -(-extent * count // (SCAN_BLOCKS * cores * THREADS)))
    length = next((n for n in range(length, 2 * length) if extent % n == 0), length)
    most = min(power(count), power(count * extent // (length * cores) + 1) // 2)
    threads = max(WARP, min(THREADS, most))
    return ranked(
        Member(float(n or extent), partial(_columns, before, name, inside[0].name, f.var, n, t))
        for n in dict.fromkeys(n if n < extent else 0 for n in (length, 2 * length, extent))
        for t in dict.fromkeys((threads, max(WARP, threads // 2), min(THREADS, 2 * threads)))
    )


def _columns(before: list[Step], name: str, total: str, var: str, length: int, threads: int) -> list[Step]:
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
