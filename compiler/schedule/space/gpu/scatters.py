"""Scatter updates on a GPU: each element of the target has one owner, which applies its updates in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from compiler.analysis import access
from compiler.analysis.nests import contiguous, iterations, loop_ranges
from compiler.ir import loop
from compiler.ir.expr import Const, Load, Var, names, product
from compiler.ir.multiples import ceildiv, power
from compiler.ir.statement import If, Stmt, Store
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.space.gpu import pointwise
from compiler.schedule.space.gpu.plan import THREADS, WARP, Plan, collapse_rows, lanes
from compiler.schedule.space.members import Member, above, either, ranked
from compiler.schedule.steps import Bind, Owners, Reorder, Split, Step

WARPS = 4  # warps per block
TESTS = 8  # most tests of 32 updates each that a warp makes at once
AHEAD = 16  # updates whose values a warp loads before it applies the first
OWNERS = tuple(1 << n for n in range(3, 13))


@dataclass(frozen=True)
class Updates:
    """Ordered loops that update `buffer`, outermost first.

    `axes` are the axes that data index; with `same_for_rows`, all rows update the same places.
    """

    nest: list[loop.For]
    buffer: str
    axes: list[int]
    same_for_rows: bool


def updates(rows: list[loop.For], inside: tuple[Stmt, ...]) -> Updates | None:
    """The ordered updates, if rows do nothing else and do not read what they update; else None."""
    nest: list[loop.For] = []
    while len(inside) == 1 and isinstance(inside[0], loop.For) and inside[0].kind == "scan":
        nest.append(inside[0])
        inside = inside[0].body
    match inside:
        case (Store(buffer) as update,) | (If(body=(Store(buffer) as update,)),):
            ordered, own = {f.var for f in nest}, {r.var for r in rows}
            places = {n: set(names(i)) for n, i in enumerate(update.index) if ordered & set(names(i))}
            read = any(isinstance(n, Load) and n.buffer == buffer for s in inside for n in s.walk())
            if places and not read and all(isinstance(f.extent, Const) for f in nest):
                return Updates(nest, buffer, [*places], not any(own & place for place in places.values()))
    return None


def space(plan: Plan, rows: list[loop.For], found: Updates) -> Iterator[Member]:
    """Schedules by number of owners; if rows keep all threads busy, also with each row its own owner."""
    name, before = collapse_rows(rows)
    nest, count, columns = found.nest, iterations(*found.nest), iterations(*rows)
    elements = product(tuple(plan.tensors[found.buffer].shape[n] for n in found.axes))
    most = min(count, int(elements.value)) if isinstance(elements, Const) else count
    parts = [n for n in OWNERS if n <= max(OWNERS[0], 2 * most)]
    if found.same_for_rows:
        vector = _vector_width(plan, rows, nest[-1].body)
        pieces = -(-columns // (WARP * vector))
        owner_schedules = ranked(
            Member(
                cost.voted_update_clocks(plan.target, count, n, pieces, ahead),
                partial(_steps_with_votes, before, name, nest, n, vector, ahead),
            )
            for n in parts
            for ahead in (AHEAD, AHEAD // 2)
            if ahead <= max(count, AHEAD // 2)
        )
    else:
        threads = min(THREADS, power(columns))
        owner_schedules = ranked(
            Member(
                cost.update_clocks(plan.target, count * WARP, n, -(-columns // WARP)),
                partial(_steps_with_tests, before, name, nest[0].var, n, max(WARP, threads)),
            )
            for n in parts
        )
    if not rows:
        return owner_schedules
    own_rows = pointwise.space(plan, rows, (nest[0],))
    return either(owner_schedules, above(cost.sequential_update_clocks(plan.target, count, columns), own_rows))


def _vector_width(plan: Plan, rows: list[loop.For], body: tuple[Stmt, ...]) -> int:
    """Rows per thread (vector width), if they are adjacent in memory."""
    if not rows:
        return 1
    ranges = loop_ranges(rows)
    beside = contiguous(access.strides(body, Var(rows[-1].var), plan.tensors, ranges))
    return plan.vector_width(rows[-1], body) if beside >= 0.5 else 1


def _steps_with_tests(before: list[Step], row: str, scanned: str, parts: int, threads: int) -> list[Step]:
    """Each thread tests all updates of its row."""
    owner = f"{scanned}_owner"
    block, lane = naming.pieces(row)
    owned = [Owners(scanned, parts, owner), Bind(owner, "blocks"), Split(row, threads, (block, lane))]
    return [*before, *owned, Bind(block, "blocks"), Bind(lane, "lanes", lanes(threads, 1))]


def _steps_with_votes(
    before: list[Step], row: str, nest: list[loop.For], parts: int, vector: int, ahead: int
) -> list[Step]:
    """Each warp tests many updates by vote, then applies those that are its own.

    The warps of a block own different elements of the same rows. Most updates may be of one element, and these are read
    at the bandwidth of as many multiprocessors as there are blocks for its rows.
    """
    steps = [*before]
    scanned = naming.collapse([f.var for f in nest], steps)
    owner = f"{scanned}_owner"
    block, warp = naming.pieces(owner)
    tests = min(TESTS, ceildiv(iterations(*nest), WARP))
    votes = Bind(scanned, "votes", (("tests", tests), ("ahead", ahead)))
    owned: list[Step] = [Owners(scanned, parts, owner), Split(owner, WARPS, (block, warp))]
    spread = [Bind(block, "blocks"), Bind(warp, "warps"), votes]
    if not row:
        return [*steps, *owned, *spread]
    columns, lane = naming.pieces(row)
    return [
        *steps,
        Split(row, WARP * vector, (columns, lane)),
        Reorder((columns, scanned, lane)),
        *owned,
        Reorder((block, columns, warp)),
        Bind(columns, "blocks"),
        *spread,
        Bind(lane, "lanes", lanes(WARP, vector)),
    ]
