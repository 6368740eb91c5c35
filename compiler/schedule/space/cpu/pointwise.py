"""CPU schedules with rows as the lanes of vectors: elementwise kernels, permuted copies, inner loops across memory.

Rows are split into chunks for the cores, or into short chunks whose temporaries stay in cache. Vectors of columns that
go down inner loops together share cache lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from compiler.analysis import access
from compiler.analysis.nests import overwrites_only
from compiler.analysis.vectors import even_unroll, fitting_unroll, fitting_width
from compiler.ir import loop
from compiler.ir.expr import Const, Var, dim
from compiler.schedule import names as naming
from compiler.schedule.cost import cpu as cost
from compiler.schedule.space.cpu import partitioned, strips, turned
from compiler.schedule.space.cpu.nests import Nest, touched
from compiler.schedule.space.members import Member, either, ranked, relative
from compiler.schedule.steps import Bind, Split, Step, StoreAt

CHUNK = 16384  # elements of a flat loop per chunk: 64 KiB of f32, well above the cost of a handover to another core
LONGER = (1, 4)  # multiples of that
MOST_COLUMNS = 8  # vectors of columns that go down the rows together
MOST_FLAT = 4  # the same for rows without inner loops, where nothing is shared
UNCUT, ONE_CORE = 0, -1  # instead of a number of chunks: rows as they are, and all rows on one core


@dataclass(frozen=True)
class _Way:
    """Vector width, vectors per iteration, chunks per core at a time, whether stores bypass the caches, and bytes ahead
    of loads and stores that these prefetch."""

    width: int
    columns: int
    chunks: int
    past: bool
    ahead: int


def space(nest: Nest) -> Iterator[Member]:
    """Schedules with rows as lanes, and the alternatives that partition, transpose or strip-mine rows."""
    found: dict[tuple[int, int, int, int, bool, int], _Way] = {}
    for way in _ways(nest):
        found.setdefault(_bound(nest, way), way)
    ways = list(found.values())
    least = float(max(1, nest.count * nest.work))
    costs = relative([_cycles(nest, way) for way in ways])
    whole = ranked(Member(least * c, partial(_steps, nest, way)) for c, way in zip(costs, ways, strict=True))
    before = touched(nest.inside) * cost.accesses(nest.across(), nest.lanes) / nest.lanes
    edges = iter(()) if nest.rows_as_lanes else partitioned.guarded(nest, least)
    cut = list(partitioned.space(nest, least))  # within its parts, indices take no arithmetic
    down = iter(()) if cut else strips.space(nest, least)
    return either(whole, iter(cut), edges, turned.space(nest, least, before), down)


def _ways(nest: Nest) -> Iterator[_Way]:
    width = nest.lanes if nest.lanes > 1 and nest.rows_as_lanes else 1
    marks = [(False, 0)]
    if width > 1 and nest.stores:
        marks += [(True, 0)]
    if width > 1 and _exposed(nest):
        marks += [(False, cost.PAGE)]
    for lanes in (width, width // 2) if width > 2 else (width,):
        for columns in _columns(nest, width):
            for chunks in _chunks(nest, columns, width):
                yield from (_Way(lanes, columns, chunks, past, ahead) for past, ahead in marks)


def _exposed(nest: Nest) -> float:
    """Cycles that a vector waits for memory unless it was prefetched; rows with inner loops jump about in it."""
    return 0.0 if _shares(nest) or nest.stored_at else cost.exposed_stream(nest.memory.target, nest.memory.moved)


def _columns(nest: Nest, width: int) -> list[int]:
    """Numbers of vectors that may go down the rows together: they fit registers, temporaries fit the L2."""
    extent, shared = nest.groups[-1].extent, _shares(nest)
    if width == 1:
        return [1]
    held = nest.memory.row_bytes(list(nest.stored_at), extent) * width
    short = int(extent.value) // width if isinstance(extent, Const) else MOST_COLUMNS
    every = [n for n in (1, 2, 4, 8) if n <= (MOST_COLUMNS if shared else MOST_FLAT)]
    fitting = [n for n in every if n == 1 or (n <= short and n * held <= nest.memory.target.l2)]
    if shared:
        return fitting[::-1]
    # The rows of a gather start anywhere: two vectors at a time request more of the next row early.
    gathers = any(access.picked(n) for s in nest.inside for n in s.walk())
    return sorted(fitting, key=lambda n: n != 2) if gathers else fitting


def _shares(nest: Nest) -> bool:
    """Whether rows have inner loops, so that neighbouring vectors share cache lines."""
    return any(isinstance(s, loop.For) for s in nest.inside)


def _chunk(nest: Nest, columns: int) -> int:
    """The fewest rows in a chunk: whole vectors; if rows have temporaries, no more than that."""
    step = columns * nest.lanes
    return step if nest.stored_at else -(-CHUNK // nest.work // step) * step


def _chunks(nest: Nest, columns: int, width: int) -> list[int]:
    """Numbers of chunks that a core may take at a time, best first at equal cost."""
    if nest.stored_at:
        return [1]
    least, extent = _chunk(nest, columns), nest.groups[-1].extent
    long = int(extent.value) if isinstance(extent, Const) and len(nest.groups) == 1 else 0
    cut = [n for n in LONGER if long >= 2 * least * n]
    if len(nest.groups) > 1 or width == 1:
        return [*(cut or [UNCUT]), ONE_CORE]
    return [*cut, ONE_CORE]


def _cycles(nest: Nest, way: _Way) -> float:
    """Relative cycles per row: of its vectors, divided by the cores in use."""
    memory, extents = nest.memory, [g.extent for g in nest.groups]
    rows, *_ = [int(e.value) if isinstance(e, Const) else CHUNK for e in extents]
    enough = rows if way.chunks == UNCUT else rows * nest.work // (CHUNK * way.chunks)
    cores = 1 if way.chunks == ONE_CORE else min(memory.target.cores, enough)
    each = cost.columns(memory.target, way.columns) if _shares(nest) else 1.0
    cycles = cost.vector(memory.target, nest.accesses, nest.stores, sums=False,
                         unroll=way.columns, moved=memory.moved, past=way.past, waits=_exposed(nest),
                         ahead=way.ahead)  # fmt: skip
    return each * cycles / (max(1, cores) * way.width)


def _bound(nest: Nest, way: _Way) -> tuple[int, int, int, int, bool, int]:
    """The effective parameters of a way: rows per chunk (or 0), kind of chunking, width, unroll, past, ahead."""
    name, extent = nest.groups[-1].name, nest.groups[-1].extent
    chunk = way.chunks * _chunk(nest, way.columns) if way.chunks > 0 else 0
    if chunk:
        whole = isinstance(extent, Const) and int(extent.value) % chunk == 0
        extent = dim(chunk) if whole else Var(naming.pieces(name)[1])
    width = fitting_width(way.width, extent)
    if width == 1:
        return chunk, min(way.chunks, 1), 1, 1, False, 0
    unroll = fitting_unroll(extent, width, even_unroll(extent, width, way.columns))
    return chunk, min(way.chunks, 1), width, unroll, way.past, way.ahead


def _again(nest: Nest, chunk: int, width: int) -> bool:
    """Whether rows with inner loops leave more than one element over, worth an overlapping vector."""
    extent, inside = nest.groups[-1].extent, overwrites_only(nest.inside)
    return not chunk and _shares(nest) and inside and isinstance(extent, Const) and int(extent.value) % width > 1


def _steps(nest: Nest, way: _Way) -> list[Step]:
    *outer, last = nest.groups
    name, spread = last.name, way.chunks != ONE_CORE
    chunk, _, width, unroll, past, ahead = _bound(nest, way)
    steps: list[Step] = [*nest.collapsed, *(Bind(g.name, "blocks") for g in outer[:1] if spread)]
    if chunk:
        pieces, inner = naming.pieces(name)
        steps.append(Split(name, chunk, (pieces, inner)))
        steps += [StoreAt(b, pieces) for b in nest.stored_at]
        steps += [Bind(pieces, "blocks")] if not outer else []
        name = inner
    elif not outer and way.chunks == UNCUT:
        steps.append(Bind(name, "blocks"))
    if width > 1:
        marks = (("ahead", ahead), ("past", past), ("owned", ahead > 0), ("again", _again(nest, chunk, width)))
        args = (("width", width), ("unroll", unroll), *((word, int(value)) for word, value in marks if value))
        steps.append(Bind(name, "vector", args))
    return [*steps, *(s.replace(loop=name) if s.loop == last.name else s for s in nest.hoisted)]
