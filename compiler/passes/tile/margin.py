"""The schedule step `margin`: inside a loop, copy a part of a buffer into a tile, with zeros beyond its edges."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.guarded_factors import block, unwidened, zero
from compiler.ir import tile
from compiler.ir.expr import Cast, Expr, Load, Select, both, cast, const, names, op, select, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import from_linear, linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Kernel, Stmt, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.value_ranges import value_range
from compiler.passes.tile.nests import loop_variables, loops_along, loops_in, ranges_of, ranges_within
from compiler.schedule.steps import Margin, ScheduleError


def margin(kernel: Kernel, step: Margin, f: tile.For) -> tuple[Stmt, ...]:
    """`margin("x", "x_tile", "i", into=("at",))`

    before:
        for i in serial(8):
            for j in serial(10):
                s: f32 = 0.0
                for r in serial(3, reduce):
                    s += x[i, j + r - 1] if j + r - 1 >= 0 else 0.0
                y[i, j] = s
    after:
        for i in serial(8):
            x_tile = local(f32[12])
            for at in serial(12):
                x_tile[at] = x[i, at - 1] if at - 1 >= 0 else 0.0
            for j in serial(10):
                s: f32 = 0.0
                for r in serial(3, reduce):
                    s += x_tile[j + r]
                y[i, j] = s

    Elements widened from a short float are widened in the tile.
    """
    outside = next(around for around, g in loops_in(kernel.body) if g is f)
    around = ranges_of((*outside, f))
    inside = ranges_within(f)
    value, load = _match_guarded_load(kernel, step, f)
    axes = [_used_part(step, k, i, set(around), inside) for k, i in enumerate(load.index)]
    kept = [a for a in axes if a.count > 1]
    loops = loop_variables(step, step.into, len(kept))
    at = dict(zip(kept, loops, strict=True))
    around |= {v.name: (0, a.count - 1) for a, v in at.items()}
    place = tuple(simplify(at[a] + a.start, around) if a in at else a.start for a in axes)
    sizes = next(p.shape for p in kernel.params if p.name == step.buffer)
    within = (c for i, n in zip(place, sizes, strict=True) for c in (op("ge", i, 0), op("lt", i, n)))
    element = cast(load.replace(index=place), value.dtype)
    filled = select(both(*(simplify(c, around) for c in within)), element, zero(value))
    shape = tuple(const(a.count) for a in kept)
    copy = loops_along(loops, shape, Store(step.tile, loops, filled))
    held = Tensor(step.tile, value.dtype, shape, row_major(shape))
    body = substitute(f.body, {value: Load(step.tile, tuple(a.inside for a in kept), value.dtype)})
    return (f.replace(body=(tile.Alloc(held, "local"), *copy, *body)),)


def _match_guarded_load(kernel: Kernel, step: Margin, f: tile.For) -> tuple[Expr, Load]:
    """The single value that is an element of the buffer or zero beyond its edges, and the load in it.

    If more than the element is zero beyond the edges, or something else replaces it there, the value is the load alone.
    """
    shapes = {p.name: p.shape for p in kernel.params if p.name not in kernel.writes}
    loads = {n for n in f.walk() if isinstance(n, Load) and n.buffer == step.buffer}
    if step.buffer in shapes and len(loads) == 1:
        (load,) = loads
        # From the outside in: a guard, the guarded value, and the load alone.
        values = [n for n in f.walk() if isinstance(n, Select | Cast) and block(unwidened(n), shapes) in loads]
        if not values:
            return load, load
        if set(values) <= set(values[0].walk()):
            return values[0], load
    raise ScheduleError(step, f"{f.var} has no one element of {step.buffer} that is zero beyond its edges")


@dataclass(frozen=True)
class _UsedPart:
    """The part of a buffer's axis that is used: its `start`, the index `inside` it, and its length `count`."""

    start: Expr
    inside: Expr
    count: int


def _used_part(step: Margin, number: int, index: Expr, around: set[str], inside: dict[str, Range]) -> _UsedPart:
    terms, rest = linear(index)
    fixed = {t: n for t, n in terms.items() if names(t) <= around}
    moving = from_linear(({t: n for t, n in terms.items() if t not in fixed}, 0))
    low, high = value_range(moving, inside)
    if low is None or high is None:
        raise ScheduleError(step, f"how far {step.buffer} is used along axis {number} is not known")
    return _UsedPart(from_linear((fixed, rest + low)), from_linear(linear(moving - low)), high - low + 1)
