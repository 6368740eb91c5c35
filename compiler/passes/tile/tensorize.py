"""The schedule steps `distribute` and `tensorize`, for contractions.

Together with `pack` they turn a scalar sum inside parallel loops into a tensor instruction on tiles: `distribute` gives
the sum a nest of its own, `pack` copies a factor into a tile, `tensorize` replaces the innermost loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.analysis.guarded_factors import read_narrow
from compiler.analysis.nests import perfect, wrap
from compiler.ir import loop, tile
from compiler.ir.expr import Const, Expr, Load, Var, dim, names, substitute
from compiler.ir.rewrite import replaced
from compiler.ir.statement import Accum, Init, Kernel, Let, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.passes.tile.nests import (
    Body,
    Loops,
    copy_nest,
    factors,
    find_nest,
    loop_variables,
    match_slice,
    max_length,
    ranges_of,
)
from compiler.schedule.steps import Distribute, ScheduleError, Step, Tensorize


def distribute(kernel: Kernel, step: Distribute) -> Kernel:
    """`distribute("c", ("i", "j"), into=("i", "j"))`

    before:
        for i in serial(4):
            for j in serial(6):
                c: f32 = 0.0
                for l in serial(8, reduce):
                    c += a[i, l] * b[l, j]
                y[i, j] = max(c, 0.0)
    after:
        c = local(f32[4, 6])
        for i_first in serial(4):
            for j_first in serial(6):
                c[i_first, j_first] = 0.0
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a[i, l] * b[l, j]
        for i_last in serial(4):
            for j_last in serial(6):
                y[i_last, j_last] = max(c[i_last, j_last], 0.0)
    """
    around, nest = find_nest(kernel, step, step.loops)
    if any(f.kind != "parallel" for f in nest):
        raise ScheduleError(step, f"the iterations of {', '.join(step.loops)} must be independent")
    parts = _split_body(step, nest[-1].body)
    ranges = ranges_of((*around, *nest))
    shape = tuple(dim(max_length(step, f, ranges)) for f in nest)
    scalar = Var(step.accumulator, parts.first.value.dtype)
    tile_tensor = Tensor(step.accumulator, scalar.dtype, shape, row_major(shape))
    index = tuple(Var(f.var) for f in nest)
    total = Store(tile_tensor.name, index, parts.sum.value, parts.sum.op)
    after = substitute(parts.after, {scalar: Load(tile_tensor.name, index, scalar.dtype)})
    out = (
        tile.Alloc(tile_tensor, step.space),
        *copy_nest(
            nest, loop_variables(step, step.first, len(nest)), (Store(tile_tensor.name, index, parts.first.value),)
        ),
        *wrap(nest, wrap(parts.loops, (total,))),
        *copy_nest(nest, loop_variables(step, step.last, len(nest)), (*parts.before, *after)),
    )
    return kernel.replace(body=replaced(kernel.body, nest[0], out))


@dataclass(frozen=True)
class _Parts:
    """The body of a loop nest around one accumulator."""

    before: Body
    first: Init
    loops: Loops
    sum: Accum
    after: Body


def _split_body(step: Distribute, body: Body) -> _Parts:
    place = next((n for n, s in enumerate(body) if isinstance(s, Init) and s.name == step.accumulator), None)
    if place is None or place + 1 == len(body):
        raise ScheduleError(step, f"{step.accumulator} does not begin inside {step.loops[-1]}")
    before, first, nest, after = body[:place], body[place], body[place + 1], body[place + 2 :]
    assert isinstance(first, Init)
    loops, inside = perfect(tile.For, (nest,), loop.KINDS)
    lets = {Var(s.name, s.value.dtype): s.value for s in (*before, *inside) if isinstance(s, Let)}
    sums = [s for s in inside if not isinstance(s, Let)]
    if not all(isinstance(s, Let) for s in before):
        raise ScheduleError(step, f"{step.accumulator} begins after something other than a value")
    if len(sums) != 1 or not isinstance(sums[0], Accum) or sums[0].name != step.accumulator:
        raise ScheduleError(step, f"the loops after {step.accumulator} do not only add to it")
    if any(isinstance(n, Accum) and n.name == step.accumulator for s in after for n in s.walk()):
        raise ScheduleError(step, f"{step.accumulator} is added to again")
    value, start = _inline(sums[0].value, lets), _inline(first.value, lets)
    return _Parts(before, first.replace(value=start), tuple(loops), sums[0].replace(value=value), after)


def _inline(e: Expr, lets: dict[Var, Expr]) -> Expr:
    """`e` with `lets` inlined, which may refer to earlier ones."""
    while lets and any(n in lets for n in e.walk()):
        e = substitute(e, lets)
    return e


def tensorize(kernel: Kernel, step: Tensorize) -> Kernel:
    """`tensorize(("i", "j", "l"), "panel.4x6.f32")`

    before:
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a[i, l] * b[l, j]
    after:
        mma("panel.4x6.f32", c[0: +4, 0: +6], a[0: +4, 0: +8], b[0: +8, 0: +6], "mk", "kn")
    """
    around, nest = find_nest(kernel, step, step.loops)
    letter = dict(zip(step.loops, "mnk" if len(nest) == 3 else "nk", strict=True))
    match nest[-1].body:
        case (Store(acc, index, value, "sum"),) if factors(value):
            pass
        case _:
            raise ScheduleError(step, f"{step.loops[-1]} holds something other than one contraction")
    ranges = ranges_of((*around, *nest))
    long = {f.var: max_length(step, f, ranges) for f in nest}
    loads = [x for x in (read_narrow(f) for f, _ in factors(value)) if isinstance(x, Load)]
    sides = [(x, {letter[v] for e in x.index for v in names(e) if v in letter}) for x in loads]
    a = next((x for x, axes in sides if "n" not in axes), None)
    b = next((x for x, axes in sides if "m" not in axes and x is not a), None)
    if a is None or b is None:
        raise ScheduleError(
            step, "its factors are not a load that moves along m and k and one that moves along k and n"
        )
    found = [_slice_of(step, buffer, i, long) for buffer, i in ((acc, index), (a.buffer, a.index), (b.buffer, b.index))]
    c_axes, a_axes, b_axes = ("".join(letter[v] for v in axes) for axes, _ in found)
    c, left, right = (x for _, x in found)
    layouts = (("mn",), ("mk", "km"), ("kn", "nk")) if len(nest) == 3 else (("n",), ("k",), ("kn", "nk"))
    if any(axes not in allowed for axes, allowed in zip((c_axes, a_axes, b_axes), layouts, strict=True)):
        raise ScheduleError(step, f"the tiles lie as {c_axes} += {a_axes} * {b_axes}")
    extents = {letter[f.var]: f.extent for f in nest}
    whole = all(isinstance(e, Const) for e in extents.values())
    sizes = () if whole else tuple(extents.get(x, dim(1)) for x in "mnk")
    instruction = tile.Mma(
        step.instruction, c, left, right, (a_axes, b_axes), sizes, step.grid, step.neighbours, step.again
    )
    return kernel.replace(body=replaced(kernel.body, nest[0], (instruction,)))


def _slice_of(step: Step, buffer: str, index: Sequence[Expr], long: dict[str, int]) -> tuple[list[str], tile.Slice]:
    """The loops that move the axes of a buffer, in order, and the slice that they cover."""
    found = match_slice(index, long)
    if found is None:
        raise ScheduleError(step, f"{buffer} is not read in rows and columns, pack it first")
    return found[0], found[1].replace(buffer=buffer)
