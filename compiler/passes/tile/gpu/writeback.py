"""The schedule step `writeback`: store results in a tile in shared memory, and copy it out at once."""

from __future__ import annotations

from compiler.analysis.guarded_factors import at_least_zero, zero
from compiler.analysis.nests import wrap
from compiler.ir import tile
from compiler.ir.expr import Expr, Load, Var, both, loads, names, select, substitute
from compiler.ir.linear import linear
from compiler.ir.rewrite import replaced
from compiler.ir.statement import If, Kernel, Let, Stmt, Store, within
from compiler.ir.value_ranges import conjuncts
from compiler.passes.tile.gpu.buffer_boxes import box
from compiler.passes.tile.nests import (
    Body,
    constant_lengths,
    find_input,
    find_nest,
    ranges_of,
    replaced_in_loop,
    tile_along,
)
from compiler.schedule.steps import ScheduleError, Writeback


def writeback(kernel: Kernel, step: Writeback) -> Kernel:
    """`writeback("y", "out", ("i", "j"), "tma", 32)`

    before:
        for i0 in serial(3):
            for i in serial(4):
                for j in serial(8):
                    y[i0 * 4 + i, j] = c[j] + b[i0 * 4 + i]
    after:
        for i0 in serial(3):
            out = shared(f32[4, 8], swizzle=32)
            for i in serial(4):
                for j in serial(8):
                    out[i, j] = c[j] + b[i0 * 4 + i]
            copy(y[i0 * 4: +4, 0: +8], out[0: +4, 0: +8], "tma")

    The copy drops what lies outside the buffer, so only loads keep their guards. With `initial="x"`, where the nest
    loads x[i0 * 4 + i, j], the loop over i0 begins with

            out = shared(f32[4, 8], swizzle=32)
            copy(out[0: +4, 0: +8], x[i0 * 4: +4, 0: +8], "tma")

    and the nest loads out[i, j] instead.
    """
    around, nest = find_nest(kernel, step, step.loops)
    ranges = ranges_of((*around, *nest))
    long = constant_lengths(step, nest, ranges)
    guards: list[Expr] = []
    body = nest[-1].body
    if len(body) == 1 and isinstance(body[0], If):
        guards, body = list(conjuncts(body[0].cond)), body[0].body
    stores = [s for s in body if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].buffer != step.buffer or not all(isinstance(s, Let | Store) for s in body):
        raise ScheduleError(step, f"{step.loops[-1]} does more than store to {step.buffer}")
    (store,) = stores
    target = next(p for p in kernel.params if p.name == step.buffer)
    ends = zip(store.index, target.shape, strict=True)
    bounds = [b for i, n in ends for b in (linear(i), linear(n - i - 1))]
    if not all(at_least_zero(g) in bounds for g in guards):
        raise ScheduleError(step, f"the guards of {step.loops[-1]} are not the bounds of {step.buffer}")
    axes = box(store.index, long, target)
    if axes is None or set(axes[0]) != set(long) or store.op != "set":
        raise ScheduleError(step, f"what is stored to {step.buffer} is no block of it")
    order, place = axes
    if place.steps:
        raise ScheduleError(step, f"what is stored to {step.buffer} lies apart")
    held, whole = tile_along(step.tile, target.dtype, order, long)
    index = tuple(map(Var, order))
    own = {held.name, *(n.tensor.name for n in within(kernel.body, tile.Alloc))}
    alloc = tile.Alloc(held, "shared", step.swizzle)
    begin: Body = ()
    if step.initial:
        body = _load_from_tile(kernel, step, store, body, Load(held.name, index, held.dtype))
        begin = (alloc, tile.Copy(whole, place.replace(buffer=step.initial), step.how, None, step.width, step.rounds))
    inner: Body = tuple(_guard_loads_only(s, guards, own) for s in body)
    inner = tuple(s.replace(buffer=held.name, index=index) if isinstance(s, Store) else s for s in inner)
    copy = tile.Copy(place, whole, step.how, None, step.width, step.rounds)
    if not begin:
        return kernel.replace(body=replaced(kernel.body, nest[0], (alloc, *wrap(nest, inner), copy)))
    if not around:
        raise ScheduleError(step, f"no loop is around {step.loops[0]}, at whose start {step.initial} could be copied")
    return replaced_in_loop(kernel, around[-1], nest[0], (*wrap(nest, inner), copy), begin)


def _load_from_tile(kernel: Kernel, step: Writeback, store: Store, body: Body, element: Load) -> Body:
    """The statements with the loads of `initial`, which are to be where the store is, replaced by `element`."""
    initial = find_input(kernel, step, step.initial)
    found = {n for s in body for n in loads(s) if n.buffer == step.initial}
    if {n.index for n in found} != {store.index}:
        raise ScheduleError(step, f"{step.loops[-1]} loads other elements of {step.initial} than it stores")
    target = next(p for p in kernel.params if p.name == step.buffer)
    if (initial.dtype, initial.shape) != (target.dtype, target.shape):
        raise ScheduleError(step, f"{step.initial} and {step.buffer} differ in their elements or sizes")
    return substitute(body, dict.fromkeys(found, element))


def _guard_loads_only(s: Stmt, guards: list[Expr], own: set[str]) -> Stmt:
    """A statement with only its loads guarded, by the conditions that concern them; the kernel's tiles need none."""
    table: dict[Expr, Expr] = {}
    for n in loads(s):
        mine = [g for g in guards if names(g) & names(n)]
        if mine and n.buffer not in own:
            table[n] = select(both(*mine), n, zero(n))
    (out,) = substitute((s,), table)
    return out
