"""The schedule step `load_ahead`: load what a nest combines with a tile before the tile is computed."""

from __future__ import annotations

from compiler.analysis.guarded_factors import zero
from compiler.ir import tile
from compiler.ir.expr import Expr, Load, Var, both, dim, loads, names, op, select, substitute
from compiler.ir.statement import Kernel, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.value_ranges import value_range
from compiler.passes.tile.nests import (
    find_input,
    find_nest,
    loop_variables,
    loops_along,
    max_length,
    ranges_of,
    replaced_in_loop,
)
from compiler.schedule.steps import LoadAhead, ScheduleError


def load_ahead(kernel: Kernel, step: LoadAhead) -> Kernel:
    """`load_ahead("b", "held", ("i",), into=("held_at",))`

    before:
        for i0 in serial(3):
            t = registers(f32[4])
            for i_first in serial(4):
                t[i_first] = 0.0
            for i in serial(4):
                c[i0 * 4 + i] = t[i] + b[i0 * 4 + i]
    after:
        for i0 in serial(3):
            held = registers(f32[4])
            for held_at in serial(4):
                held[held_at] = b[i0 * 4 + held_at]
            t = registers(f32[4])
            for i_first in serial(4):
                t[i_first] = 0.0
            for i in serial(4):
                c[i0 * 4 + i] = t[i] + held[i]
    """
    around, nest = find_nest(kernel, step, step.loops)
    buffer = find_input(kernel, step, step.buffer)
    found = {n for n in nest[-1].walk() if isinstance(n, Load) and n.buffer == step.buffer}
    if len(found) != 1 or not around:
        raise ScheduleError(
            step, f"{step.loops[-1]} loads {len(found)} elements of {step.buffer}, within {len(around)} loops"
        )
    (load,) = found
    known = {f.var for f in (*around, *nest)}
    if not names(load) <= known or loads(load) != (load,):
        raise ScheduleError(step, f"where {step.buffer} is loaded is not known before {step.loops[0]}")
    ranges = ranges_of((*around, *nest))
    own = [f for f in nest if f.var in names(load)]
    into = loop_variables(step, step.into, len(own))
    long = [max_length(step, f, ranges) for f in own]
    shape = tuple(map(dim, long))
    held = Tensor(step.tile, buffer.dtype, shape, row_major(shape))
    (value,) = substitute(
        (_load_or_zero(load, buffer, ranges),), {Var(f.var): v for f, v in zip(own, into, strict=True)}
    )
    fill = loops_along(into, shape, Store(held.name, into, value))
    place = Load(held.name, tuple(Var(f.var) for f in own), buffer.dtype)
    (used,) = substitute((nest[0],), {load: place})
    return replaced_in_loop(kernel, around[-1], nest[0], (used,), (tile.Alloc(held, "registers"), *fill))


def _load_or_zero(load: Load, buffer: Tensor, ranges: dict[str, tuple[int | None, int | None]]) -> Expr:
    """The element, or zero where a tile exceeds its buffer, where it is never used."""
    ends = {i: (n, value_range(i - n, ranges)[1]) for i, n in zip(load.index, buffer.shape, strict=True)}
    beyond = (op("lt", i, n) for i, (n, most) in ends.items() if most is None or most >= 0)
    return select(both(*beyond), load, zero(load))
