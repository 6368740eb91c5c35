"""The schedule step `pack` on Tile IR: a factor of a sum of products goes into a local tile before the sum."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Load, Var, dim, names
from compiler.ir.index import Range
from compiler.ir.statement import Kernel, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.passes.tile.nests import (
    Body,
    Loops,
    again,
    factors,
    longest,
    moving,
    ranges_of,
    replace,
    replace_sum,
    sums_in,
)
from compiler.schedule.steps import Pack, ScheduleError, Step

PAGE, LINE = 4096, 64


def pack(kernel: Kernel, step: Pack) -> Kernel:
    """`pack("a", "a_tile", ("i", "l"))`

    before:
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += f32(a[i, l]) * b[j, l]
    after:
        a_tile = local(f32[4, 8])
        for i_a_tile in serial(4):
            for l_a_tile in serial(8):
                a_tile[i_a_tile, l_a_tile] = f32(a[i_a_tile, l_a_tile])
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a_tile[i, l] * b[j, l]
    """
    for around, total in sums_in(kernel.body):
        named = {f.var: f for f in around}
        if not set(step.loops) <= set(named):
            continue
        for factor, other in factors(total.value):
            left = {f.var for f in around} & names(factor) - set(step.loops)
            if step.buffer not in {n.buffer for n in factor.walk() if isinstance(n, Load)}:
                continue
            depth = max((d + 1 for d, f in enumerate(around) if f.var in left), default=0)
            if any(f.var in step.loops for f in around[:depth]):
                continue
            loops = tuple(named[v] for v in step.loops)
            _check_extents(step, loops, around[:depth])
            held, own, fill = _filled(step, factor, loops, ranges_of(around))
            product = total.replace(value=Load(held.name, own, factor.dtype) * other)
            target = around[depth]
            new = replace_sum(target, total, product)
            return kernel.replace(body=replace(kernel.body, target, (tile.Alloc(held, "local"), *fill, new)))
    raise ScheduleError(
        step, f"no sum of products within {', '.join(step.loops)} has a factor from {step.buffer} over these"
    )


def _filled(step: Pack, factor: Expr, loops: Loops, ranges: dict[str, Range]) -> tuple[Tensor, tuple[Expr, ...], Body]:
    """The tile, its index of one element of the factor, and what fills it: a copy of a block of a buffer, or loops."""
    long = {f.var: longest(step, f, ranges) for f in loops}
    shape = tuple(dim(long[f.var]) for f in loops)
    held = _padded(Tensor(step.tile, factor.dtype, shape, row_major(shape)))
    if isinstance(factor, Load):
        axes = moving(factor.index, long)
        if axes is not None and set(axes[0]) == set(long):
            order, source = axes
            steps = dict(zip(long, held.strides, strict=True))
            held = held.replace(shape=tuple(dim(long[v]) for v in order), strides=tuple(steps[v] for v in order))
            whole = tile.Slice(held.name, (dim(0),) * len(order), tuple(long[v] for v in order))
            return held, tuple(map(Var, order)), (tile.Copy(whole, source.replace(buffer=factor.buffer), "plain"),)
    own = tuple(Var(f.var) for f in loops)
    fill = again(loops, "_" + step.tile, (Store(held.name, own, factor),))
    return held, own, _bound(fill, step.width) if step.width > 1 else fill


def _bound(body: Body, width: int) -> Body:
    """The innermost loop of a nest becomes vectors."""
    (f,) = body
    assert isinstance(f, tile.For)
    if isinstance(f.body[0], tile.For):
        return (f.replace(body=_bound(f.body, width)),)
    return (f.replace(bind=tile.Bind("vector", (("width", width), ("unroll", 1)))),)


def _padded(t: Tensor) -> Tensor:
    """Rows of a multiple of 4 KiB would compete for the same few lines of a cache: they are a line longer."""
    row = t.shape[-1]
    if len(t.shape) < 2 or not isinstance(row, Const) or row.value * t.dtype.bytes % PAGE:
        return t
    return t.replace(strides=row_major((*t.shape[:-1], row + LINE // t.dtype.bytes)))


def _check_extents(step: Step, loops: Loops, outside: Sequence[tile.For]) -> None:
    known = {f.var for f in outside}
    for f in loops:
        if names(f.extent) - known:
            raise ScheduleError(step, f"the extent of {f.var} depends on a loop inside the place of the tile")
