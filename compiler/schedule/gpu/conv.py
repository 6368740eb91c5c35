"""Contractions as matmuls whose tiles are boxes of buffers, such as convolutions (implicit GEMM).

The rows of such a matmul run through several axes of a buffer: images, rows and columns of pixels. A tile of rows is a
box. Of the reduction loops, the contiguous one is the depth of a tile; the others shift the box and belong to the loop
over tiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set

from compiler.analysis import access
from compiler.analysis.guarded_factors import steady, unwidened
from compiler.analysis.nests import loop_ranges, size
from compiler.ir import loop
from compiler.ir.expr import Expr, Load, Var, const, loads, names, static, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Store
from compiler.ir.tensor import Tensor, is_static, known_bytes, memory_order
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import Contraction, sides
from compiler.schedule.gpu import permuted_copy
from compiler.schedule.gpu.box_shapes import box
from compiler.schedule.gpu.matmul import Operand
from compiler.schedule.gpu.matmul_axes import (
    PIECES,
    ROW,
    Axis,
    Factor,
    MatmulAxes,
    Result,
    axis,
    epilogue_operands,
    factor,
)
from compiler.schedule.steps import Pad, Permute, Reorder, Split, Step

MOST_AXES, FARTHEST_STEP = 5, 8  # of a tensor map


def candidate_matmuls(c: Contraction, tensors: Mapping[str, Tensor]) -> Iterator[MatmulAxes]:
    """All such matmuls for a contraction: either factor may be the left one."""
    ranges = loop_ranges(c.loops)
    for (left, rows), (right, columns) in sides(c):
        if not rows or not columns:
            continue
        yield from _with_computed_rows(c, (left, rows), (right, columns), tensors, ranges)
        for inner in c.depth:
            for (a, first), (b, second) in itertools.product(
                factor_variants(left, right, rows, inner, tensors, ranges),
                factor_variants(right, left, columns, inner, tensors, ranges),
            ):
                k = _depth(c, inner, (a, b), tensors if first is second is None else {})
                if k is None:
                    continue
                m, n = (boxed_axis(own, x, tensors) for own, x in ((rows, left), (columns, right)))
                batch = tuple(f for f in c.rows if f not in rows and f not in columns)
                result, across = result_of(c, m, n, tensors)
                m.near, n.near = not across, across
                preparation = (
                    *permuted_copy.preparation((first, second), tensors),
                    loaded_bytes(left, right, tensors=tensors),
                )
                if m.boxed or n.boxed or first or second or len(c.depth) > 1:
                    joined = tuple(x for x in epilogue_operands(c, m, n, tensors, ranges) if not x.is_block)
                    yield MatmulAxes(c, m, n, k, batch, a, b, across, result, *preparation, joined)


def _depth(c: Contraction, inner: loop.For, factors: Sequence[Factor], tensors: Mapping[str, Tensor]) -> Axis | None:
    """The reduction loops, the `inner` one in whole rows of a tile. If its extent leaves a rest, the axis is extended;
    that needs both factors to be contiguous along it and to end there, so that the rest is zero. Otherwise None."""
    k = axis([*(f for f in c.depth if f is not inner), inner])
    row = ROW // max(x.operand.bytes for x in factors)
    rest = size(inner) % row
    if rest:
        if any(x.order[1] != "k" or x.buffer not in tensors for x in factors) or any(
            extends_past(inner, x.index, tensors[x.buffer].shape) for f in (c.left, c.right) for x in loads(f)
        ):
            return None
        k.boxed, k.box = True, (*[1] * (len(k.loops) - 1), row)
        k.size += k.size // size(inner) * (row - rest)
    return k


def extends_past(f: loop.For, index: Sequence[Expr], shape: Sequence[Expr]) -> bool:
    """Whether the buffer has elements beyond the end of loop `f`: no axis is indexed by `f` and ends with it."""
    return not any(e is Var(f.var) and n is f.extent for e, n in zip(index, shape, strict=True))


def loaded_bytes(*factors: Expr, tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the buffers that the factors load, counted once per load."""
    return sum(known_bytes(tensors[n.buffer]) for x in factors for n in loads(x))


def _with_computed_rows(
    c: Contraction,
    left: tuple[Expr, Sequence[loop.For]],
    right: tuple[Expr, Sequence[loop.For]],
    tensors: Mapping[str, Tensor],
    ranges: Mapping[str, Range],
) -> Iterator[MatmulAxes]:
    """Matmuls whose rows are boxes, and whose left operand is computed by threads element by element."""
    (x, rows), (y, columns) = left, right
    if len(rows) < 2 or len(columns) > 1 or guarded_load(x, tensors, {f.var for f in c.loops}) is None:
        return
    found = loads(x)[0]
    place = access.address(found.index, tensors[found.buffer], ranges)
    strides = {f.var: access.stride(place, Var(f.var)) or 0 for f in c.depth}
    k = axis(sorted(c.depth, key=lambda f: -strides[f.var]))
    m, n = axis(rows), axis(columns)
    m.boxed = True
    a, b = (factor(v, part, k, tensors, ranges) for v, part in ((x, m), (y, n)))
    batch = tuple(f for f in c.rows if f not in rows and f not in columns)
    read = loaded_bytes(x, y, tensors=tensors)
    _, across = result_of(c, m, n, tensors)
    m.near = not across
    if not a.operand.copied:
        yield MatmulAxes(c, m, n, k, batch, a, b, across, None, read=read)


def factor_variants(
    value: Expr, other: Expr, own: Sequence[loop.For], inner: loop.For, tensors: Mapping[str, Tensor],
    ranges: Mapping[str, Range],
) -> Iterator[tuple[Factor, Permute | None]]:  # fmt: skip
    """The factor as it is, and the factor after a copy that makes its buffer contiguous along the inner loop.

    A buffer that the other factor loads too is not copied: all loads of the kernel would use the copy.
    """
    plain = _boxed_factor(value, own, inner, tensors, ranges)
    if plain is not None:
        yield plain, None
    load = guarded_load(value, tensors, {f.var for f in (*own, inner)})
    if load is None or (plain is not None and plain.even and plain.order[1] == "k"):
        return
    if load.buffer in {n.buffer for n in loads(other)}:
        return
    t = tensors[load.buffer]
    inner_axes = [d for d, e in enumerate(load.index) if e is Var(inner.var)]
    if len(inner_axes) != 1 or len(set(loads(value))) != 1:
        return
    order = (*(d for d in range(len(t.shape)) if d not in inner_axes), *inner_axes)
    # A load without guards need not copy the elements that no index reaches.
    index_steps = tuple(map(_index_step, load.index)) if unwidened(value) is load else ()
    tile = f"{t.name}_permuted"
    into = tuple(f"{tile}_at{n}" for n in range(len(order)))
    step = Permute(t.name, tile, order, into, index_steps if set(index_steps) - {1} else ())
    if not permuted_copy.steps(step, t):
        return
    copy, moved = permuted_copy.held(step, t), permuted_copy.load(load, step)
    permuted = _boxed_factor(substitute(value, {load: moved}), own, inner, {**tensors, step.tile: copy}, ranges)
    if permuted is not None:
        yield permuted, step


def _index_step(e: Expr) -> int:
    """The step of an index: it reaches one of so many elements of an axis."""
    terms, rest = linear(e)
    return math.gcd(*terms.values(), rest) or 1


def _stride_bytes(t: Tensor, last: int) -> list[int]:
    """Strides in bytes of all axes longer than 1, except axis `last`."""
    axes = (d for d, n in enumerate(t.shape) if d != last and static(n) > 1)
    return [static(t.strides[d]) * t.dtype.bytes for d in axes]


def boxed_axis(loops: Sequence[loop.For], value: Expr, tensors: Mapping[str, Tensor]) -> Axis:
    """The loops of one side as an axis. It is boxed unless it is one loop that runs over a whole axis of the buffer."""
    load = guarded_load(value, tensors, {f.var for f in loops})
    assert load is not None
    places = [(d, e) for d, e in enumerate(load.index) if loops[0].var in names(e)]
    (d, e), *_ = places
    is_whole = len(loops) == 1 and e is Var(loops[0].var) and tensors[load.buffer].shape[d] is loops[0].extent
    result = axis(loops)
    result.boxed, result.step = not is_whole, max_index_step(load, loops)
    return result


def max_index_step(load: Load, loops: Sequence[loop.For]) -> int:
    """The largest step in elements of an index from one iteration of a loop to the next."""
    return max(linear(e)[0].get(Var(f.var), 1) for e in load.index for f in loops)


def guarded_load(value: Expr, tensors: Mapping[str, Tensor], tiled: Set[str]) -> Load | None:
    """The load of a factor if tiles over loops `tiled` are zero out of bounds or entirely inside; else None."""
    value = unwidened(value)
    if any(isinstance(n, Load) and n.buffer not in tensors for n in value.walk()):
        return None
    found = steady(value, {name: t.shape for name, t in tensors.items()}, tiled)
    return found[0] if found else None


def _axes_moved(load: Load, tiled: set[str]) -> tuple[dict[str, int], list[int]] | None:
    """The axis that each loop of `tiled` moves, and the steps; None unless each moves an axis of its own."""
    moved: dict[str, int] = {}
    steps: list[int] = []
    for d, e in enumerate(load.index):
        terms, _ = linear(e)
        match [v for v in terms if names(v) & tiled]:
            case []:
                continue
            case [Var(name) as v] if name not in moved and terms[v] >= 1:
                moved[name] = d
                steps.append(terms[v])
            case _:
                return None
    return (moved, steps) if moved.keys() == tiled else None


def _boxed_factor(
    value: Expr, own: Sequence[loop.For], inner: loop.For, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Factor | None:
    """The factor if it is a box of its buffer in each step of the reduction loops other than `inner`; else None."""
    tiled = {f.var for f in (*own, inner)}
    load = guarded_load(value, tensors, tiled)
    if load is None:
        return None
    t = tensors[load.buffer]
    if not is_static(t):
        return None
    found = _axes_moved(load, tiled)
    if found is None:
        return None
    moved, steps = found
    near = {v for v, d in moved.items() if t.strides[d] is const(1)}
    last = moved[inner.var] if inner.var in near else moved[own[-1].var]
    if not near & {inner.var, own[-1].var} or not {linear(load.index[last])[0].get(Var(v), 1) for v in near} <= {1}:
        return None
    order = ("own", "k") if inner.var in near else ("k", "own")
    axes = [moved[f.var] for f in own]
    tile_axes = [*axes, moved[inner.var]] if order[1] == "k" else [moved[inner.var], *axes]
    memory_axes = [d for d in memory_order(t) if d in tile_axes]
    rows = _stride_bytes(t, last)
    steps_fit = max(steps) == 1 or (max(steps) <= FARTHEST_STEP and len(own) > 1)
    even = (
        steps_fit
        and tile_axes == memory_axes
        and len(t.shape) <= MOST_AXES
        and all(n > 0 and n % 16 == 0 for n in rows)
    )
    terms, rest = linear(simplify(load.index[last], ranges, index=True))
    starts = [c * t.dtype.bytes for x, c in terms.items() if not names(x) & {own[-1].var, inner.var}]
    pieces = (p for p in PIECES if all(n % p == 0 for n in (*rows, *starts, rest * t.dtype.bytes)))
    piece = next(pieces, t.dtype.bytes)
    return Factor(
        unwidened(value), load.buffer, Operand(t.dtype.bytes, True, piece), order, even and piece == PIECES[0]
    )


def result_of(c: Contraction, m: Axis, n: Axis, tensors: Mapping[str, Tensor]) -> tuple[Result | None, bool]:
    """Where a tile of the result can be copied to, or None; and whether the result is contiguous along n."""
    stores = [s for s in c.after if isinstance(s, Store)]
    ranges = loop_ranges(c.rows)
    near = {
        f.var for s in stores for f in c.rows
        if access.stride(access.address(s.index, tensors[s.buffer], ranges), Var(f.var)) == 1
    }  # fmt: skip
    across = not any(f.var in near for f in m.loops)
    if len(stores) != 1 or stores[0].op != "set":
        return None, across
    (s,), (last, other) = stores, (n, m) if across else (m, n)
    t = tensors[s.buffer]
    axis_of_loop = {e.name: d for d, e in enumerate(s.index) if isinstance(e, Var)}
    loops = [*other.loops, *last.loops]
    known = is_static(t) and len(axis_of_loop) <= MOST_AXES
    if (
        not known
        or not {f.var for f in loops} <= axis_of_loop.keys()
        or not all(t.shape[axis_of_loop[f.var]] is f.extent for f in loops)
    ):
        return None, across
    axes = [axis_of_loop[f.var] for f in loops]
    same_order = axes == [d for d in memory_order(t) if d in axes]
    rows = _stride_bytes(t, axes[-1])
    if t.strides[axes[-1]] is not const(1):
        return None, across
    by_tma = same_order and not last.boxed and not any(x % 16 for x in rows)
    return Result(s.buffer, t.dtype.bytes, True, True, "tma" if by_tma else "plain"), across


def split_into_boxes(x: Axis, length: int) -> list[Step]:
    """Steps that split the loops of an axis into a loop over boxes and a loop within a box; both names go into `x`."""
    lengths = x.box or box(tuple(size(f) for f in x.loops), length, x.step, x.near)
    loops = [f.var for f in x.loops]
    full = tuple(-(-size(f) // n) * n for f, n in zip(x.loops, lengths, strict=True))
    steps: list[Step] = []
    if full != tuple(size(f) for f in x.loops):
        steps.append(Pad(tuple(loops), full))
    into = [naming.pieces(v) for v in loops]
    steps += [Split(v, n, two) for v, n, two in zip(loops, lengths, into, strict=True)]
    outer, inner = [two[0] for two in into], [two[1] for two in into]
    if len(loops) > 1:
        steps.append(Reorder((*outer, *inner)))
    for part in (outer, inner):
        naming.collapse(part, steps)
    x.outer, x.name = "".join(outer), "".join(inner)
    return steps
