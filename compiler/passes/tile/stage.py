"""The schedule steps `store_at` and `stage`: make what an iteration uses of a buffer a tile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.analysis import access
from compiler.analysis.guarded_factors import zero
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Load, Select, both, const, names, op, select, substitute
from compiler.ir.linear import from_linear, has_sizes, linear
from compiler.ir.ranges import Range
from compiler.ir.rewrite import statements
from compiler.ir.statement import If, Kernel, Stmt, Store, within
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.value_ranges import extent_range, value_range
from compiler.passes.tile.gpu.stage_copy import stage_by_copy
from compiler.passes.tile.nests import (
    Body,
    find_input,
    loop_variables,
    loops_along,
    padded_strides,
    ranges_of,
    ranges_within,
)
from compiler.schedule.steps import ScheduleError, Stage, StoreAt


def store_in_tile(step: StoreAt, kernel: Kernel, f: tile.For, buffer: Tensor) -> tuple[Stmt, ...]:
    """The loop of the step with the temporary as a tile inside."""
    uses = [n for n in f.walk() if isinstance(n, Load | Store) and n.buffer == buffer.name]
    everywhere = [n for s in kernel.body for n in s.walk() if isinstance(n, Load | Store) and n.buffer == buffer.name]
    if len(uses) != len(everywhere):
        raise ScheduleError(step, f"{buffer.name} is used outside {f.var}")
    axes = _used_axes(kernel, f, buffer, uses)
    shape = tuple(extent for extent, _ in axes if extent is not None)
    tile_tensor = buffer.replace(shape=shape, strides=row_major(shape))
    body = _reindex(f.body, buffer.name, [(k, start) for k, (extent, start) in enumerate(axes) if extent is not None])
    return (f.replace(body=(tile.Alloc(tile_tensor, step.space), *body)),)


def stage(kernel: Kernel, step: Stage, f: tile.For) -> tuple[Stmt, ...]:
    """`stage("x", "row", "i", "registers", into=("row_at",))`

    before:
        for i in serial(8):
            m: f32 = -inf
            for r in serial(10, reduce):
                m = update(max, x[i, r])
            for j in serial(10):
                y[i, j] = x[i, j] - m
    after:
        for i in serial(8):
            row = registers(f32[10])
            for row_at in serial(10):
                row[row_at] = x[i, row_at]
            m: f32 = -inf
            for r in serial(10, reduce):
                m = update(max, row[r])
            for j in serial(10):
                y[i, j] = row[j] - m

    A load whose index is loaded from another buffer is not staged if there are other loads. The buffer may be a local
    tile that is filled before the loop.
    """
    buffer = _filled_before(f, kernel, step.buffer) or find_input(kernel, step, step.buffer)
    uses = [n for n in f.walk() if isinstance(n, Load) and n.buffer == buffer.name]
    uses = [n for n in uses if not access.picked(n)] or uses
    axes = _used_axes(kernel, f, buffer, uses)
    if step.how:
        copied, table = stage_by_copy(step, buffer, axes, uses)
        return (f.replace(body=(*copied, *substitute(f.body, table))),)
    if step.turned:
        raise ScheduleError(step, "loops turn no tile, only a copy without loops does: say how")
    kept = [(k, extent, start) for k, (extent, start) in enumerate(axes) if extent is not None]
    shape = tuple(extent for _, extent, _ in kept)
    tile_tensor = Tensor(step.tile, buffer.dtype, shape, padded_strides(shape, step.pad))
    loops = loop_variables(step, step.into, len(kept))
    index_of = {k: start + v for (k, _, start), v in zip(kept, loops, strict=True)}
    whole = tuple(index_of.get(k, start) for k, (_, start) in enumerate(axes))
    value = Load(buffer.name, whole, buffer.dtype)
    if _is_guarded(f, uses):
        ranges = ranges_of(tuple(within(kernel.body, tile.For)))
        ranges |= {v.name: extent_range(n) for v, n in zip(loops, shape, strict=True)}
        is_inside = access.inside(whole, buffer, ranges)
    else:
        # With symbolic sizes, a tile may exceed its buffer; the elements beyond are never used.
        is_inside = both(
            *(op("lt", index_of[k], n) for k, n in enumerate(buffer.shape) if k in index_of and has_sizes(n))
        )
    copy = loops_along(loops, shape, Store(step.tile, loops, select(is_inside, value, zero(value))))
    body = _reindex(f.body, buffer.name, [(k, start) for k, _, start in kept], step.tile, uses)
    return (f.replace(body=(tile.Alloc(tile_tensor, step.space), *copy, *body)),)


def _filled_before(f: tile.For, kernel: Kernel, name: str) -> Tensor | None:
    """The local tile `name` if it is filled before the loop `f`, which only loads its elements; None otherwise."""
    made = next(
        (a.tensor for a in within(kernel.body, tile.Alloc) if a.tensor.name == name and a.space == "local"), None
    )
    for n in f.walk():
        if isinstance(n, Store | tile.Slice) and n.buffer == name:
            return None
        if isinstance(n, tile.Alloc) and n.tensor.name == name:
            return None
    return made


def _is_guarded(f: tile.For, uses: Sequence[Load]) -> bool:
    """Whether some elements are loaded only under a condition, and may not exist otherwise."""
    selected = [x for n in f.walk() if isinstance(n, Select) for x in (n.then, n.other)]
    conditional = [s for n in within(f.body, If) for s in n.body]
    return any(n in uses for x in (*selected, *conditional) for n in x.walk())


def _used_axes(
    kernel: Kernel, f: tile.For, buffer: Tensor, uses: Sequence[Load | Store]
) -> list[tuple[Expr | None, Expr]]:
    """For each axis of a buffer, the part that an iteration of `f` uses, as `_used_part` returns it."""
    around = {f.var} | {n.var for n in within(kernel.body, tile.For) if f in set(n.walk())}
    ranges = ranges_within(f)
    return [_used_part(extent, [u.index[k] for u in uses], around, ranges) for k, extent in enumerate(buffer.shape)]


def _used_part(
    extent: Expr, indices: list[Expr], around: set[str], ranges: dict[str, Range]
) -> tuple[Expr | None, Expr]:
    """The length of an axis used in one iteration of the loops around, None for a single place, and its start."""
    starts, rests = zip(*(_split_index(i, around) for i in indices), strict=True)
    spans = [value_range(r, ranges) for r in rests]
    if len(set(starts)) > 1 or any(low is None or low < 0 or high is None for low, high in spans):
        return extent, const(0)
    if set(rests) == {const(0)}:
        return None, starts[0]
    longest = 1 + max(high for _, high in spans if high is not None)
    # Take the whole axis if what remains after the last element used is no more than the gap between two.
    between = math.gcd(*(c for r in rests for c in (*linear(r)[0].values(), linear(r)[1]))) - 1
    if isinstance(extent, Const) and longest + max(between, 0) >= extent.value:
        return extent, const(0)
    return const(longest), starts[0]


def _split_index(index: Expr, around: set[str]) -> tuple[Expr, Expr]:
    """An index as the part that the loops around determine, and the rest."""
    terms, rest = linear(index)
    fixed = {t: n for t, n in terms.items() if names(t) <= around}
    if len(fixed) == len(terms):
        return index, const(0)
    return from_linear((fixed, 0)), from_linear(({t: n for t, n in terms.items() if t not in fixed}, rest))


def _reindex(
    body: Body, buffer: str, axes: list[tuple[int, Expr]], name: str = "", uses: Sequence[Load] | None = None
) -> Body:
    """The body with the buffer, renamed to `name`, reduced to the remaining axes, with relative indices.

    If `uses` is given, only these loads change.
    """

    def relative(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(index[k] if start is const(0) else from_linear(linear(index[k] - start)) for k, start in axes)

    table: dict[object, object] = {}
    for s in body:
        for n in s.walk():
            if isinstance(n, Load) and n.buffer == buffer and (uses is None or n in uses):
                table[n] = n.replace(buffer=name or buffer, index=relative(n.index))
    body = substitute(body, table)

    def stored(s: Stmt) -> Stmt | None:
        return s.replace(index=relative(s.index)) if isinstance(s, Store) and s.buffer == buffer else None

    return statements(body, stored)
