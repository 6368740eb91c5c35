"""Schedules for Triton: which loops are programs of the grid, and which are tiles, whose sizes are powers of two.

Triton's own compiler decides everything within a tile. A program has a whole row if the row is not too long, so that
the row is read once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from compiler.analysis import access
from compiler.analysis.nests import loop_ranges, paths_of, rows_of
from compiler.analysis.size_hints import with_size_hints
from compiler.ir import loop
from compiler.ir.expr import Const, Load, Var, hint, names
from compiler.ir.multiples import power
from compiler.ir.statement import Kernel, Stmt, Store, within
from compiler.schedule import contraction_nest
from compiler.schedule import names as naming
from compiler.schedule.space.members import Member, fixed
from compiler.schedule.steps import Bind, Reorder, Split, Step, StoreAt
from compiler.targets.target import Target

ELEMENTS = 1024  # of a program's tile without a reduction
TILE = 4096  # elements of a tile of rows
LONGEST = 16384  # row that fits in one tile
SHORT = 16  # loops within rows that are too short for an axis
LEAST = 16  # side of a tile of a matmul
DEPTH = 64  # bytes of a row of an operand's tile along the sum


def families(kernel: Kernel, private: frozenset[str], _: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """The families of schedules for a kernel, special ones first."""
    c = contraction_nest.recognise(with_size_hints(kernel))
    if c is not None:
        steps = _matmul(c)
        if steps:
            yield "matmul", fixed(0.0, *steps)
    yield "nests", fixed(0.0, *_nests(kernel, private))


def plain(kernel: Kernel, _: frozenset[str], target: Target) -> Iterator[tuple[str, Iterator[Member]]]:
    """The families that keep all stores in memory and use no matmul."""
    yield "nests", fixed(0.0, *_nests(kernel, frozenset()))


def size(f: loop.For) -> int:
    """The expected extent of a loop."""
    return max(1, hint(f.extent))


def _lanes(elements: int) -> tuple[tuple[str, int], ...]:
    """The number of threads that share a tile of so many elements."""
    return (("threads", 256 if elements > 4 * ELEMENTS else 128),)


def _tile(loop_: str, factor: int, elements: int, outer: str) -> list[Step]:
    """Split a loop into tiles of `factor` and bind the loop over tiles to `outer`."""
    around, inside = naming.pieces(loop_)
    return [Split(loop_, factor, (around, inside)), Bind(around, outer), Bind(inside, "lanes", _lanes(elements))]


# ---- matmuls


def _matmul(c: contraction_nest.Contraction) -> list[Step]:
    """Steps for a matmul with tiles of m and n and steps of k, one loop each; empty without m or n."""
    if c.first.value.dtype.bits != 32 or not c.first.value.dtype.is_float:
        return []
    left, right = (
        [f for f in c.rows if f.var in names(x) and f.var not in names(y)]
        for x, y in ((c.left, c.right), (c.right, c.left))
    )
    if max(map(size, left), default=1) < 2 or max(map(size, right), default=1) < 2:
        return []
    first, last = sorted((left, right), key=lambda some: c.rows.index(some[-1]))
    outside = [f.var for f in c.rows if f not in left and f not in right]
    order = (*outside, *(f.var for f in (*first, *last)))
    steps: list[Step] = [Reorder(order)] if order != tuple(f.var for f in c.rows) else []
    loops = [naming.collapse([f.var for f in some], steps) for some in (first, last, c.depth)]
    extents = [math.prod(map(size, some)) for some in (first, last, c.depth)]
    max_side = 128 if extents[0] * extents[1] >= 1024 * 1024 else 64
    sides = [max(LEAST, min(max_side, power(n))) for n in extents[:2]]
    bytes_ = min(x.dtype.bytes for n in (c.left, c.right) for x in n.walk() if isinstance(x, Load))
    depth_step = max(LEAST, min(2 * DEPTH // bytes_, power(extents[2])))
    elements = 4 * ELEMENTS + 1 if math.prod(sides) > 64 * 64 else 0
    for name, side in zip(loops, sides, strict=False):
        steps += _tile(name, side, elements, "blocks")
    pieces = [naming.pieces(name) for name in loops]
    steps += [Bind(v, "blocks") for v in outside]
    steps.append(Reorder((*outside, pieces[0][0], pieces[1][0], pieces[0][1], pieces[1][1])))
    return [*steps, *_tile(loops[2], depth_step, elements, "serial")]


# ---- everything else


def _nests(kernel: Kernel, private: frozenset[str]) -> list[Step]:
    steps: list[Step] = []
    for s in kernel.body:
        if isinstance(s, loop.For):
            steps += _nest(kernel, s, private)
    return steps


def _nest(kernel: Kernel, f: loop.For, private: frozenset[str]) -> list[Step]:
    """One nest: programs take single rows or tiles of rows."""
    rows, inside = rows_of(f) if f.kind == "parallel" else ([], (f,))
    paths = paths_of(inside)
    if not paths:
        steps: list[Step] = []
        name = naming.collapse([r.var for r in rows], steps)
        total = math.prod(size(r) for r in rows)
        return [*steps, *_tile(name, min(ELEMENTS, power(total)), 0, "blocks")]
    longest = max(size(path[-1]) for path in paths)
    across = bool(rows) and longest > 1 and _is_contiguous_across(kernel, rows, inside, paths)
    total = math.prod(size(r) for r in rows)
    if rows and (longest <= SHORT or any(g.kind == "scan" for path in paths for g in path)):
        return [*_bind_rows(rows, min(ELEMENTS // 4, power(total)), 0), *_bind_inner(paths, 0, 0)]
    if across:
        wide = min(64, power(total))
        deep = min(power(longest), TILE // wide)
        return [*_bind_rows(rows, wide, 0), *_bind_inner(paths, deep, 0)]
    known = all(isinstance(path[-1].extent, Const) for path in paths)
    whole = power(longest) if known and longest <= LONGEST else TILE
    wide = max(1, min(power(total), ELEMENTS // whole)) if rows else 1
    kept = _register_temporaries(kernel, rows, inside, paths, private) if known and whole >= longest else []
    return [*kept, *(_bind_rows(rows, wide, whole) if rows else []), *_bind_inner(paths, whole, wide * whole)]


def _bind_rows(rows: list[loop.For], wide: int, elements: int) -> list[Step]:
    steps: list[Step] = []
    name = naming.collapse([r.var for r in rows], steps)
    return [*steps, *(_tile(name, wide, elements, "blocks") if wide > 1 else [Bind(name, "blocks")])]


def _bind_inner(paths: list[list[loop.For]], deep: int, elements: int) -> list[Step]:
    """Bind the innermost loops as tiles of `deep` elements, shorter ones as a whole; none if `deep` is 0."""
    steps: list[Step] = []
    for path in paths:
        g = path[-1]
        if not deep or g.kind == "scan" or any(x.kind == "scan" for x in path) or size(g) < 2:
            continue
        if isinstance(g.extent, Const) and size(g) <= deep:
            steps.append(Bind(g.var, "lanes", _lanes(elements)))
        else:
            steps += _tile(g.var, deep, elements, "serial")
    return steps


def _register_temporaries(
    kernel: Kernel, rows: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]], private: frozenset[str]
) -> list[Step]:
    """Temporaries of a row that can stay in registers."""
    if not rows or any(len(path) > 1 for path in paths):
        return []
    stored = {n.buffer for n in within(inside, Store)}
    return [StoreAt(p.name, rows[-1].var, "registers") for p in kernel.params if p.name in private & stored]


def _is_contiguous_across(
    kernel: Kernel, rows: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]]
) -> bool:
    """Whether memory is contiguous across rows rather than along them."""
    tensors = {p.name: p for p in kernel.params}
    ranges = loop_ranges(rows)
    ranges |= loop_ranges(f for path in paths for f in path)
    inner = sum(n == 1 for p in paths for n in access.strides(p[-1].body, Var(p[-1].var), tensors, ranges))
    outer = sum(n == 1 for n in access.strides(inside, Var(rows[-1].var), tensors, ranges))
    return outer > inner
