"""CPU rows with inner loops (reductions and scans): rows are distributed over cores, inner loops over vector lanes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from compiler.analysis import access
from compiler.analysis.nests import contiguous, even, paths_of, used_as_value
from compiler.analysis.vectors import NARROWEST, even_unroll, fitting_unroll, fitting_width
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Op, Var, dim
from compiler.ir.functions import FUNCTIONS
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, Init
from compiler.schedule import names as naming
from compiler.schedule.cost import cpu as cost
from compiler.schedule.space.cpu import partitioned, pointwise, turned_rows
from compiler.schedule.space.cpu.nests import Nest, touched, work
from compiler.schedule.space.members import Member, above, both, either, fixed, ranked, relative
from compiler.schedule.steps import Bind, Collapse, Reorder, Split, Step, StoreAt

HELD = 8  # vectors of a row that stay in registers while the indices are the same, as in the pass `held`
COLUMNS = 128  # columns per core, at least, of rows that are updated in place: 8 cache lines of f32
NEXT_ROW = 8  # the next row is prefetched if it takes at most this part of the second-level cache
SHORT = 256  # iterations of a loop whose prologue and epilogue cost as much as its vectors
# Independent accumulators hide the latency of an add or max (4 cycles, two per cycle on current x86). The first is
# preferred at equal estimates.
UNROLLED_SUMS, UNROLLED = (4, 2, 8, 1), (1, 2, 4)


def space(nest: Nest) -> Iterator[Member]:
    """Schedules with lanes along the inner loops or, where memory may be contiguous that way, across the rows."""
    lanes, steps = nest.memory.target.lanes(4), float(max(1, nest.count * nest.work))
    placing = _placing(nest)
    if not nest.groups:
        return _along(nest, steps)
    if not (nest.rows_as_lanes or placing):
        scalar = steps * lanes
        rows = _along(nest, steps * _accesses(nest, lanes))
        return either(rows, partitioned.guarded(nest, scalar), _turned(nest, steps, lanes))
    across = steps * cost.accesses(nest.across(), lanes)
    along = steps * max(_accesses(nest, lanes), _scattered(nest, lanes))
    rows = fixed(across, *_within(nest, placing)) if placing else above(across, pointwise.space(nest))
    return either(_along(nest, along), rows, _turned(nest, steps, lanes))


def _turned(nest: Nest, steps: float, lanes: int) -> Iterator[Member]:
    """Lanes along the inner loops, for tiles of rows whose operands are transposed first."""
    found = turned_rows.tiled(nest)
    if found is not None:
        tiles, turning = found
        yield from _along(tiles, steps * max(_accesses(tiles, lanes), _scattered(tiles, lanes)) + turning * lanes)


def _placing(nest: Nest) -> tuple[loop.For, ...]:
    """The inner loops, if rows only apply ordered updates, as in a scatter; else none."""
    path = nest.paths[0]
    chain = nest.inside == path[:1] and all(f.body == (g,) for f, g in itertools.pairwise(path))
    scalars = any(isinstance(n, Init | Accum) for s in path[-1].body for n in s.walk())
    return path if chain and not scalars and all(f.kind == "scan" for f in path) else ()


def _within(nest: Nest, path: tuple[loop.For, ...]) -> Iterator[Step]:
    """Lanes along the innermost, contiguous rows, inside the loops over updates; each core has a part of the rows."""
    *outer, last = nest.groups
    name, extent, target = last.name, last.extent, nest.memory.target
    yield from nest.collapsed
    if outer:
        yield Bind(outer[0].name, "blocks")
    elif isinstance(extent, Const) and int(extent.value) > (part := _part(int(extent.value), target.cores)):
        pieces, name = naming.pieces(name)
        yield Split(last.name, part, (pieces, name))
        yield Bind(pieces, "blocks")
        extent = dim(part) if int(extent.value) % part == 0 else Var(name)
    yield Reorder((*(f.var for f in path), name))
    body = path[-1].body
    width = fitting_width(target.lanes(access.widest(body, {f.var for f in last.loops})), extent)
    if width > 1 and not access.not_vectorizable(body, Var(nest.last.var), nest.memory.tensors, nest.known(path)):
        yield Bind(name, "vector", (("width", width), ("unroll", fitting_unroll(extent, width, HELD))))


def _part(rows: int, cores: int) -> int:
    """How many of the rows each core gets."""
    return -(-rows // (cores * COLUMNS)) * COLUMNS


def _along(nest: Nest, least: float) -> Iterator[Member]:
    """Rows distributed over cores, and each inner loop in its own way; the cheapest combination costs `least`."""
    before = [*nest.collapsed, *(StoreAt(b, nest.groups[-1].name) for b in nest.stored_at)]
    loops = (above(0.0, _leaf(nest, path, sweep)) for sweep, path in enumerate(nest.paths))
    return both(fixed(least, *before), above(0.0, _spread(nest)), *loops)


def _accesses(nest: Nest, lanes: int) -> float:
    """Average cycles of one vector's access along the inner loops; lane by lane if these are too short."""
    out = 0.0
    known = nest.known(f for path in nest.paths for f in path)
    for path in nest.paths:
        share = contiguous(access.strides(path[-1].body, Var(path[-1].var), nest.memory.tensors, known, named=True))
        width = fitting_width(lanes, _merged(nest, path, nest.known(path))[1])
        out += cost.accesses(share, width) * lanes / width
    return out / len(nest.paths)


def _scattered(nest: Nest, lanes: int) -> float:
    """Cycles of a vector whose runs of neighbours are shorter than a vector, for the loop with the shortest runs."""
    found = [ends for path in nest.paths if (ends := _merged(nest, path, nest.known(path))[2])]
    return max((cost.scattered(nest.memory.target, n, lanes) for n in found if n < lanes), default=0.0)


def _spread(nest: Nest) -> Iterator[Member]:
    """The outermost rows on all cores, or everything on one core."""
    if not nest.groups:
        return fixed(0.0)
    first, every = nest.groups[0], float(nest.count * nest.work)
    rows = int(first.extent.value) if isinstance(first.extent, Const) else nest.memory.target.cores
    spread = every / max(1, min(nest.memory.target.cores, rows))
    return either(fixed(spread, Bind(first.name, "blocks")), fixed(every))


def _leaf(nest: Nest, path: tuple[loop.For, ...], sweep: int) -> Iterator[Member]:
    """Schedules of the innermost loop of a path with vector lanes; it is this `sweep` over the row, counted from 0."""
    memory, leaf, ranges = nest.memory, path[-1], nest.known(path)
    name, extent, ends, merged = _merged(nest, path, ranges)
    lanes = fitting_width(memory.target.lanes(access.widest(leaf.body, {leaf.var})), extent)
    while ends % lanes:
        lanes //= 2
    scan = leaf.kind == "scan" or access.not_vectorizable(leaf.body, Var(leaf.var), memory.tensors, ranges)
    if scan or lanes == 1:
        return fixed(0.0, *merged)
    sums, stored, accesses = leaf.kind == "reduce", memory.stored(leaf.body), touched(leaf.body)
    calls = any(
        isinstance(n, Op) and n.name in FUNCTIONS and Var(leaf.var) in n.walk() for s in leaf.body for n in s.walk()
    )
    waits = cost.exposed(memory.target, memory.moved, sweep, len(nest.paths), calls)
    distance = (cost.PAGE if sums else 0) if sweep == 0 else _next_row(nest, path) if waits else 0
    # The next row is in time for loads. Of what is stored, the hardware has no stream yet when a row's loop begins.
    stream = cost.exposed_stream(memory.target, memory.moved) if stored and not sums and not waits else 0.0
    owned = stream > 0
    if owned:
        waits, distance = stream, cost.PAGE
    every = [
        (width, even_unroll(extent, width, unroll) if sums else unroll, past, ahead)
        for width in (lanes, lanes // 2)
        for unroll in (UNROLLED_SUMS if sums else UNROLLED)
        for past in ((False, True) if stored else (False,))
        for ahead in dict.fromkeys((0, distance))
        if width >= NARROWEST and not (owned and past and ahead)
    ]
    ways = list(dict.fromkeys(every))
    often = float(nest.count * work((leaf,)))
    # Sums of fewer vectors than the unroll factor go one by one and cost no more: g++ unrolls them, and rows overlap.
    costs = relative([
        cost.vector(memory.target, accesses, stored, sums=sums, unroll=unroll, moved=memory.moved, past=past,
                    waits=waits, ahead=ahead) * (lanes // width)
        for width, unroll, past, ahead in ways
    ])  # fmt: skip
    least: dict[tuple[int, int, bool, int], float] = {}
    for c, (width, unroll, past, ahead) in zip(costs, ways, strict=True):
        bound = width, fitting_unroll(extent, width, unroll), past, ahead
        least[bound] = min(c, least.get(bound, c))
    return ranked(Member(often * c, partial(_bound, merged, name, owned, *way)) for way, c in least.items())


def _next_row(nest: Nest, path: tuple[loop.For, ...]) -> int:
    """The distance in bytes from what the innermost loop of a path loads contiguously to the same of the next row.

    0 if such loads differ in it, or if the next row would displace the present one from the caches.
    """
    leaf, memory = path[-1], nest.memory
    length = int(leaf.extent.value) if isinstance(leaf.extent, Const) else 0
    found: set[int] = set()
    for load in (n for s in leaf.body for n in s.walk() if isinstance(n, Load) and n.buffer not in memory.private):
        tensor = memory.tensors[load.buffer]
        place = access.address(load.index, tensor, nest.known(path))
        if access.stride(place, Var(leaf.var)) == 1 and (stride := access.stride(place, Var(nest.last.var))) != 0:
            # A smaller stride is that of rows that overlap, or that lie side by side and are transposed first.
            found.add(stride * tensor.dtype.bits // 8 if stride is not None and stride >= length > 0 else 0)
    distance = found.pop() if len(found) == 1 else 0
    return distance if distance <= memory.target.l2 // NEXT_ROW else 0


def _bound(merged: list[Step], name: str, owned: bool, width: int, unroll: int, past: bool, ahead: int) -> list[Step]:
    marks = (("past", past), ("ahead", ahead), ("owned", owned and ahead > 0))
    args = (("width", width), ("unroll", unroll), *((word, int(value)) for word, value in marks if value))
    return [*merged, Bind(name, "vector", args)]


def _merged(nest: Nest, path: tuple[loop.For, ...], ranges: dict[str, Range]) -> tuple[str, Expr, int, list[Step]]:
    """The innermost loop of a path, collapsed with those around it through which every address has a constant stride.

    Returns name, extent, the length of runs of neighbours of which vectors must be parts (0 for any), and the steps.
    Only short loops are collapsed, which would end before vectors pay; long sums stay nested, for accuracy. Short sums
    over neighbours are collapsed with those around them if vectors end where the neighbours do.
    """
    leaf = path[-1]
    name, extent, steps = _evenly(nest, path, leaf, ranges)
    outer = path[: len(path) - 1 - len(steps)]
    if not outer or outer[-1].kind != "reduce" or not _whole_vectors(nest, outer[-1], leaf, extent, ranges):
        return name, extent, 0, steps
    around, turns, more = _evenly(nest, outer, leaf, ranges)
    both = turns * extent
    if not isinstance(extent, Const) or not _short(extent, both):
        return name, extent, 0, steps
    return around + name, both, int(extent.value), [*steps, *more, Collapse(around, name, around + name)]


def _evenly(
    nest: Nest, path: tuple[loop.For, ...], leaf: loop.For, ranges: dict[str, Range]
) -> tuple[str, Expr, list[Step]]:
    """The last loop of a path collapsed with those around it as long as addresses in `leaf` have a constant stride."""
    steps: list[Step] = []
    name, extent = path[-1].var, path[-1].extent
    for outer, inner in zip(path[-2::-1], path[:0:-1], strict=True):
        alike = outer.kind == inner.kind != "scan" and outer.body == (inner,)
        both = outer.extent * extent
        if not alike or not _short(extent, both) or not even(outer, inner, leaf.body, nest.memory.tensors, ranges):
            break
        steps.append(Collapse(outer.var, name, outer.var + name))
        name, extent = outer.var + name, both
    return name, extent, steps


def _whole_vectors(nest: Nest, outer: loop.For, leaf: loop.For, extent: Expr, ranges: dict[str, Range]) -> bool:
    """Whether the inner sum is over neighbours, a multiple of a vector, and is all that the outer loop does."""
    strides = access.strides(leaf.body, Var(leaf.var), nest.memory.tensors, ranges)
    whole = isinstance(extent, Const) and int(extent.value) % NARROWEST == 0
    chain = len(outer.body) == 1 and len(paths_of(outer.body)) == 1
    plain = not used_as_value(leaf.body, {Var(outer.var), Var(leaf.var)})
    return whole and chain and plain and leaf.kind == "reduce" and contiguous(strides) == 1


def _short(extent: Expr, both: Expr) -> bool:
    if not isinstance(both, Const) or not isinstance(extent, Const):
        return False
    return int(extent.value) < SHORT > int(both.value) // SHORT
