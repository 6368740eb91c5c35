"""The schedule step `cache`: copy a factor of a contraction into a tile of faster memory before the sum.

A factor that is a block of a buffer, or zero outside the buffer, becomes a copy; any other is computed.
"""

from __future__ import annotations

from compiler.analysis.guarded_factors import steady, unwidened
from compiler.ir import tile
from compiler.ir.expr import Expr, Load, Var, both, cast, dim, loads, names, product, select, static, substitute
from compiler.ir.index import simplify
from compiler.ir.rewrite import replaced
from compiler.ir.statement import Kernel, Stmt, Store
from compiler.ir.tensor import Tensor, memory_order, row_major
from compiler.passes.tile.gpu.buffer_boxes import box
from compiler.passes.tile.nests import (
    Loops,
    constant_lengths,
    factors_from,
    loop_variables,
    loops_along,
    ranges_of,
    tile_along,
)
from compiler.schedule.steps import Cache, ScheduleError


def cache(kernel: Kernel, step: Cache) -> Kernel:
    """`cache("a", "ta", ("i", "l"), "shared", "cp.async", 32)`

    before:
        for l0 in serial(2):
            for i in serial(4):
                for j in serial(6):
                    for l in serial(16, reduce):
                        c[i, j] += f32(a[i, l0 * 16 + l]) * b[l0 * 16 + l, j]
    after:
        for l0 in serial(2):
            ta = shared(bf16[4, 16], swizzle=32)
            copy(ta[0: +4, 0: +16], a[0: +4, l0 * 16: +16], "cp.async")
            for i in serial(4):
                for j in serial(6):
                    for l in serial(16, reduce):
                        c[i, j] += f32(ta[i, l]) * b[l0 * 16 + l, j]

    An identical tile that another step has just filled is reused.
    """
    for around, total, factor, other in factors_from(kernel, step.buffer, step.loops):
        named = {f.var: f for f in around}
        loaded = {n.buffer for n in loads(factor)}
        left = {f.var for f in around} & names(factor) - set(step.loops)
        inside = (f.var in left or f.bind.level == "blocks" or _allocates(f, loaded) for f in around)
        depth = max((d + 1 for d, needed in enumerate(inside) if needed), default=0)
        if any(f.var in step.loops for f in around[:depth]):
            continue
        held, own, fill = _fill_tile(kernel, step, unwidened(factor), tuple(named[v] for v in step.loops), around)
        value = cast(Load(held.name, own, held.dtype), factor.dtype) * other
        new = replaced((around[depth],), total, total.replace(value=value))
        made = (tile.Alloc(held, step.space, step.swizzle), *fill)
        beside = around[depth - 1].body if depth else kernel.body
        there = all(s in beside[: beside.index(around[depth])] for s in made)
        return kernel.replace(body=replaced(kernel.body, around[depth], new if there else (*made, *new)))
    raise ScheduleError(
        step, f"no contraction within {', '.join(step.loops)} has a factor from {step.buffer} over these"
    )


def _allocates(f: tile.For, names: set[str]) -> bool:
    """Whether a tile of these names is allocated in the loop's body."""
    return any(isinstance(s, tile.Alloc) and s.tensor.name in names for s in f.body)


def _fill_tile(
    kernel: Kernel, step: Cache, factor: Expr, loops: Loops, around: Loops
) -> tuple[Tensor, tuple[Expr, ...], tuple[Stmt, ...]]:
    """The tile, its index for an element of the factor, and the statements that fill it."""
    ranges = ranges_of(around)
    long = constant_lengths(step, loops, ranges)
    if not step.how:
        return _fill_by_loops(step, factor, long)
    tensors = tile.tensors(kernel)
    found = steady(simplify(factor, ranges), {name: t.shape for name, t in tensors.items()}, set(long))
    axes = box(found[0].index, long, tensors[found[0].buffer]) if found else None
    if found is None or axes is None or set(axes[0]) != set(long):
        raise ScheduleError(step, f"the factor from {step.buffer} is no block of it, so it cannot be copied")
    order, source = axes
    source = _guard_slice(source, found[1], tensors[found[0].buffer])
    held, whole = tile_along(step.tile, factor.dtype, order, long)
    copy = tile.Copy(whole, source, step.how, None, step.width, step.rounds, step.prefetch)
    return held, tuple(map(Var, order)), (copy,)


def _guard_slice(source: tile.Slice, guards: tuple[Expr, ...], buffer: Tensor) -> tile.Slice:
    """A slice that starts beyond the buffer, where all is zero, unless the guards hold."""
    if not guards:
        return source
    far = memory_order(buffer)[0]
    start = select(both(*guards), source.starts[far], buffer.shape[far])
    return source.replace(starts=(*source.starts[:far], start, *source.starts[far + 1 :]))


def _fill_by_loops(
    step: Cache, factor: Expr, long: dict[str, int]
) -> tuple[Tensor, tuple[Expr, ...], tuple[Stmt, ...]]:
    """Fill the tile by one loop in the order of memory, or by one per axis."""
    shape = tuple(map(dim, long.values()))
    held = Tensor(step.tile, factor.dtype, shape, row_major(shape))
    if isinstance(step.into, tuple):
        loops = loop_variables(step, step.into, len(shape))
        fill = Store(held.name, loops, substitute(factor, dict(zip(map(Var, long), loops, strict=True))))
        return held, tuple(map(Var, long)), loops_along(loops, shape, fill)
    size = product(shape)
    (at,) = loop_variables(step, (step.into,) if step.into else (), 1)
    places: list[Expr] = []
    rest = size
    for n in shape:
        around, rest = rest, rest // n
        places.append(at % around // rest)
    ranges = {at.name: (0, static(size) - 1)}
    index = tuple(simplify(p, ranges, index=True) for p in places)
    value = simplify(substitute(factor, dict(zip(map(Var, long), index, strict=True))), ranges)
    return held, tuple(map(Var, long)), loops_along((at,), (size,), Store(held.name, index, value))
