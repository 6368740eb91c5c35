"""TMA copies: one thread issues copies of boxes, and an mbarrier signals that they have arrived."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Expr, const, op
from compiler.ir.index import simplify
from compiler.ir.tensor import memory_order
from compiler.passes.gpu import shared_memory
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered
from compiler.passes.gpu.scope import THREAD, Scope
from compiler.passes.gpu.shared_memory import SharedTile

Body = list[k.Stmt]


def load(state: Emission, s: tile.Copy, barrier: k.Address, scope: Scope) -> Body:
    """The calls of one thread for a copy to shared memory that signals `barrier`."""
    held = state.shared[s.target.buffer]
    out: Body = []
    target, source, blocks = s.target, s.source, 1
    if s.multicast is not None:
        blocks = state.cluster
        target, source = (_part(x, blocks, s.multicast) for x in (target, source))
    for box, place, coordinates in _boxes(state, target, source, held, scope):
        to = k.Address(held.array, place)
        name = state.map(source.buffer, box, held.swizzle, _steps(source, scope))
        call, to_all = ("mlc_tma_load", ()) if blocks == 1 else ("mlc_tma_load_multicast", (const((1 << blocks) - 1),))
        out.append(k.Call(call, (), (to, k.Map(name), barrier, *to_all, *coordinates), (held.array,)))
    return out


def _part(s: tile.Slice, blocks: int, block: Expr) -> tile.Slice:
    """The part of a slice that a block of a cluster copies to all: some of the rows of a tile."""
    axis = tile.moved(s)[0]
    rows = s.lengths[axis] // blocks
    starts = (*s.starts[:axis], s.starts[axis] + block * rows * tile.steps(s)[axis], *s.starts[axis + 1 :])
    return s.replace(starts=starts, lengths=(*s.lengths[:axis], rows, *s.lengths[axis + 1 :]))


def store(state: Emission, s: tile.Copy, scope: Scope) -> Body:
    """A copy out of shared memory, issued by one thread."""
    held = state.shared[s.source.buffer]
    calls: Body = []
    for box, place, coordinates in _boxes(state, s.source, s.target, held, scope):
        name = state.map(s.target.buffer, box, held.swizzle, _steps(s.target, scope))
        source = k.Address(held.array, place)
        calls.append(k.Call("mlc_tma_store", (), (k.Map(name), source, *coordinates), (s.target.buffer,)))
    calls.append(k.Call("mlc_bulk_commit", (), ()))
    return [k.If(op("eq", THREAD, const(0)), tuple(calls))]


def _steps(s: tile.Slice, scope: Scope) -> tuple[int, ...]:
    """The element strides of a box, innermost axis first; empty if its elements are contiguous."""
    return tuple(s.steps[d] for d in reversed(memory_order(scope.buffers[s.buffer]))) if s.steps else ()


def _boxes(
    state: Emission, inside: tile.Slice, outside: tile.Slice, held: SharedTile, scope: Scope
) -> Iterator[tuple[tuple[int, ...], Expr, tuple[Expr, ...]]]:
    """A box per panel of a tile: its extents, its offset in shared memory, and its coordinates, innermost first."""
    lengths = tile.extents(inside)
    width = min(held.width, lengths[-1])
    starts = [simplify(lowered(state, e, scope), scope.ranges, index=True) for e in inside.starts]
    order = memory_order(scope.buffers[outside.buffer])
    axes = [d for d in tile.moved(outside) if outside.lengths[d] > 1]
    if axes != [d for d in order if outside.lengths[d] > 1] or inside.order or inside.steps:
        raise state.refuse(f"{outside.buffer} and {inside.buffer} do not lie alike")
    far = [simplify(lowered(state, outside.starts[d], scope), scope.ranges, index=True) for d in order]
    extents = [outside.lengths[d] or 1 for d in order]
    if not outside.lengths[order[-1]] or extents[-1] != lengths[-1]:
        raise state.refuse(f"a tensor copy of {inside.buffer} has no elements beside each other")
    extents[-1] = width
    for column in range(0, lengths[-1], width):
        place = shared_memory.slot_offset(held, (*starts[:-1], starts[-1] + column), scope.ranges)
        coordinates = (*far[:-1], simplify(far[-1] + column, scope.ranges, index=True))
        yield tuple(reversed(extents)), place, tuple(reversed(coordinates))


__all__ = ["load", "store"]
