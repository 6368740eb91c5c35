"""Sums over the windows that contain an element, as in gradients of pools: a thread has all elements of one stride.

The windows of an element depend on its index divided by the stride. Elements with the same quotient lie in the same few
windows; one thread loads these windows once, before all computation and without branches. Averages over windows with
stride 1 do not need this, because none of their loads depends on another load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from compiler.analysis import access
from compiler.analysis.nests import as_stored, iterations, loop_ranges, perfect, rows_of, size
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Op, Select, Var, loads, names, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import from_linear, linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, Kernel, Stmt, Store
from compiler.ir.tensor import Tensor, known_bytes
from compiler.ir.value_ranges import value_range
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu_threads as cost
from compiler.schedule.name_suffixes import numbered
from compiler.schedule.space.gpu import reductions
from compiler.schedule.space.gpu.plan import THREADS, lanes
from compiler.schedule.space.gpu.reductions import Reduction
from compiler.schedule.space.members import Member, priced, ranked
from compiler.schedule.steps import Bind, Distribute, Margin, Reorder, Split, Step
from compiler.targets.target import Target

ALONG = (2, 1)  # adjacent strides per thread
MOST_WORDS = 96  # 32-bit words of window data per thread, of 255 registers
MOST_TERMS = 128  # terms that a thread adds up, all unrolled


@dataclass(frozen=True)
class Gather:
    """`sum` adds, for each element of `rows`, the values `loaded` from windows.

    `strides` are the strides in elements of the rows that select windows. `around` are the rows in memory order, `near`
    the contiguous one. `inside` are all statements inside the rows.
    """

    sum: Reduction
    rows: list[loop.For]
    depth: list[loop.For]
    loaded: tuple[Load, ...]
    strides: Mapping[str, int]
    inside: tuple[Stmt, ...]
    around: tuple[str, ...]
    near: str

    def pieces(self, along: int) -> dict[str, int]:
        """How many elements along each row a thread has, for rows where it has more than one."""
        lengths = {v: n * (along if v == self.near else 1) for v, n in self.strides.items()}
        return {v: n for v, n in lengths.items() if n > 1}


def space(kernel: Kernel, private: frozenset[str], target: Target) -> Iterator[Member] | None:
    """Schedules by strides per thread and threads per block; None for other kernels and for too much data."""
    tensors = {p.name: p for p in kernel.params}
    found = _recognise(kernel, tensors) if not private & set(kernel.writes) else None
    if found is None:
        return None
    members: list[Member] = []
    for along in ALONG if found.near in found.strides else ALONG[-1:]:
        pieces = found.pieces(along)
        extents = {x: _tile_extents(x, found, pieces) for x in found.loaded}
        words = sum(math.prod(n) * -(-x.dtype.bytes // 4) for x, n in extents.items() if n)
        terms = found.sum.extent * math.prod(pieces.values())
        if not all(extents.values()) or words > MOST_WORDS or terms > MOST_TERMS:
            continue
        for threads in (THREADS, THREADS // 2):
            price = partial(_price, found, pieces, sum(map(math.prod, extents.values())), threads, tensors)
            axes = {x.buffer: sum(c > 1 for c in n) for x, n in extents.items()}
            members.append(priced(price, target, partial(_steps, found, pieces, axes, threads)))
    return ranked(members) if members else None


def _recognise(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Gather | None:
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], loop.For):
        return None
    rows, inside = rows_of(kernel.body[0])
    found = reductions.single_reduction(rows, inside)
    if found is None:
        return None
    depth, terms = perfect(loop.For, tuple(s for s in inside if isinstance(s, loop.For)), loop.KINDS)
    added = {n for s in terms if isinstance(s, Accum) for n in loads(s.value)}
    moving = {f.var for f in depth}
    loaded = tuple(sorted((x for x in added if any(moving & names(i) for i in x.index)), key=lambda x: x.buffer))
    known = loop_ranges(rows), loop_ranges(depth), _compares_elements(terms, loaded)
    divisors = {found for x in loaded for found in _window_strides(x, *known)}
    strides = {r.var: n for r in rows for v, n in divisors if v == r.var}
    # A buffer that is also loaded elsewhere would need two tiles.
    buffers = [n.buffer for n in {n for s in inside for n in s.walk() if isinstance(n, Load)}] + [*kernel.writes]
    loaded_once = all(buffers.count(x.buffer) == 1 and not any(map(loads, x.index)) for x in loaded)
    if not strides or len(strides) < len(divisors) or not loaded_once:
        return None
    ranges = loop_ranges(rows)
    stores = [s for s in inside if isinstance(s, Store)]
    around = [r.var for r in as_stored(rows, inside, tensors, ranges)]
    near = [v for v in around if all(_store_stride(s, v, tensors, ranges) == 1 for s in stores)]
    return Gather(found, rows, depth, loaded, strides, inside, (*around,), near[0] if near else "")


def _store_stride(s: Store, var: str, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> int | None:
    return access.stride(access.address(s.index, tensors[s.buffer], ranges), Var(var))


def _compares_elements(terms: tuple[Stmt, ...], loaded: tuple[Load, ...]) -> bool:
    """Whether values depend on other elements of the windows (argmax), so that unstaged code would branch on loads."""
    found = [n for s in terms if isinstance(s, Accum) for n in s.value.walk()]
    conditions = [n.args[0] for n in found if isinstance(n, Op) and n.name == "where"]
    return any(x in loads(c) for x in loaded for c in (*conditions, *(n.cond for n in found if isinstance(n, Select))))


def _window_strides(
    x: Load, rows: Mapping[str, Range], depth: Mapping[str, Range], chosen: bool
) -> Iterator[tuple[str, int]]:
    """Rows whose quotient selects the window, with divisors: of overlapping windows; of all if `chosen`."""
    for i in x.index:
        terms, _ = linear(i)
        moving = from_linear(({t: n for t, n in terms.items() if names(t) & depth.keys()}, 0))
        low, high = value_range(moving, depth)
        reach = high - low if low is not None and high is not None else 0
        for t, n in terms.items():
            match t:
                case Op("floordiv", (place, Const(int() as by))) if len(found := names(place) & rows.keys()) == 1:
                    if reach >= abs(n) or chosen:
                        yield next(iter(found)), by
                case Var(name) if name in rows and chosen and reach >= abs(n):
                    yield name, 1


def _tile_extents(x: Load, found: Gather, pieces: Mapping[str, int]) -> tuple[int, ...]:
    """Extents along each axis of what a thread needs of a buffer; empty if unknown."""
    inner: dict[str, Range] = loop_ranges(found.depth)
    outer = {r.var for r in found.rows if r.var not in pieces}
    parts: dict[Expr, Expr] = {}
    ranges = loop_ranges((*found.rows, *found.depth))
    for v, n in pieces.items():
        piece, own = naming.pieces(v)
        parts[Var(v)] = Var(piece) * n + Var(own)
        outer.add(piece)
        extent = next(size(r) for r in found.rows if r.var == v)
        inner[own], ranges[own], ranges[piece] = (0, n - 1), (0, n - 1), (0, (extent - 1) // n)
    counts: list[int] = []
    for i in x.index:
        terms, _ = linear(simplify(substitute(i, parts), ranges, index=True))
        moving = from_linear(({t: n for t, n in terms.items() if not names(t) <= outer}, 0))
        if names(moving) & outer:
            return ()
        low, high = value_range(moving, inner)
        if low is None or high is None:
            return ()
        counts.append(high - low + 1)
    return tuple(counts)


def _price(
    found: Gather, pieces: Mapping[str, int], loaded: int, threads: int, tensors: Mapping[str, Tensor], target: Target
) -> float:
    results = math.prod(pieces.values())
    count = math.prod(-(-size(r) // pieces.get(r.var, 1)) for r in found.rows)
    bytes_of = cost.element_bytes(found.inside, tensors)
    windows = {x.buffer for x in found.loaded}
    cache_bytes = count * (
        sum(results * n for b, n in bytes_of.items() if b not in windows)
        + loaded / len(found.loaded) * sum(bytes_of[b] for b in windows)
    )
    memory_bytes = sum(known_bytes(tensors[b]) for b in bytes_of)
    instructions = loaded + results * (
        found.sum.extent * len(found.loaded) + cost.operations(_epilogue(found)) + len(bytes_of)
    )
    return cost.clocks(
        cost.Threads(-(-count // threads), threads, memory_bytes, cache_bytes, 1.0, instructions), target
    )


def _epilogue(found: Gather) -> tuple[Stmt, ...]:
    return tuple(s for s in found.inside if not isinstance(s, loop.For))


def _steps(found: Gather, pieces: Mapping[str, int], axes: Mapping[str, int], threads: int) -> list[Step]:
    around, own = [*found.around], []
    steps: list[Step] = []
    for v, n in pieces.items():
        outer, inner = naming.pieces(v)
        steps.append(Split(v, n, (outer, inner)))
        around[around.index(v)] = outer
        own.append(inner)
    if [*around, *own] != [r.var for r in found.rows]:
        steps.append(Reorder((*around, *own)))
    for buffer, count in axes.items():
        tile = f"{buffer}_window"
        at = numbered(f"{tile}_at", count)
        steps += [Margin(buffer, tile, around[-1], at), *(Bind(v, "unroll") for v in at)]
    first = min(around.index(naming.pieces(v)[0] if v in pieces else v) for v in found.strides)
    sizes = {(naming.pieces(r.var)[0] if r.var in pieces else r.var): -(-size(r) // pieces.get(r.var, 1))
             for r in found.rows}  # fmt: skip
    if math.prod(sizes[v] for v in around[first:]) < THREADS:
        first = 0
    if first:
        steps.append(Bind(naming.collapse(around[:first], steps), "blocks"))
    name = naming.collapse(around[first:], steps)
    block, lane = naming.pieces(name)
    steps += [Split(name, threads, (block, lane)), Bind(block, "blocks"), Bind(lane, "lanes", lanes(threads, 1))]
    depth = [f.var for f in found.depth]
    if found.near in pieces and own[-1] == naming.pieces(found.near)[1]:
        last = own[-1]
        nests = Distribute(found.sum.accumulator, (last,), (last,), "registers")
        steps += [nests, Reorder((*depth, last))]
        even = sizes[naming.pieces(found.near)[0]] * pieces[found.near] == iterations(
            *(r for r in found.rows if r.var == found.near)
        )
        steps += [Bind(nests.first[0], "unroll"), Bind(nests.last[0], "vector" if even else "unroll")]
    return [*steps, *(Bind(v, "unroll") for v in (*own, *depth))]
