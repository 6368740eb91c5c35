"""The schedule step `split_reduction`: threads or blocks each reduce a part, and the partial results are combined."""

from __future__ import annotations

from compiler.analysis.nests import wrap
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Load, Var, dim, identity, static, substitute
from compiler.ir.rewrite import bodies, replaced
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Store
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import value_range
from compiler.passes.tile.nests import SERIAL, Body, copy_nest, find_nest, loop_variables, padded_strides, ranges_of
from compiler.schedule.steps import ScheduleError, SplitReduction


def split_reduction(kernel: Kernel, step: SplitReduction) -> Kernel:
    """`split_reduction("s", "r", 4, ("j",), "shared", "s_shares", total="s_all",
    into=("r_share", "r_share_all"), combining=("j_all",))`

    before:
        for i in serial(3):
            for j in serial(8):
                s: f32 = 0.0
                for r in serial(12, reduce):
                    s += x[r, i * 8 + j]
                y[i * 8 + j] = s
    after:
        for i in serial(3):
            s_shares = shared(f32[4, 8])
            for r_share in serial(4):
                for j in serial(8):
                    s: f32 = 0.0
                    for r in serial(3, reduce):
                        s += x[r_share * 3 + r, i * 8 + j]
                    s_shares[r_share, j] = s
            for j_all in serial(8):
                s_all: f32 = 0.0
                for r_share_all in serial(4, reduce):
                    s_all += s_shares[r_share_all, j_all]
                y[i * 8 + j_all] = s_all
    """
    _, rows = find_nest(kernel, step, step.rows) if step.rows else ((), ())
    place = rows[-1].body if rows else _enclosing_body(kernel.body, step)
    before, first, f, after = find_reduction(place, step)
    how, length = combining_operation(f, first, step), static(f.extent) // step.parts
    part, again_part = loop_variables(step, step.into, 2)
    ranges = ranges_of(rows)
    extents = [value_range(r.extent, ranges)[1] for r in rows]
    if any(e is None for e in extents) or any(r.kind != "parallel" for r in rows):
        raise ScheduleError(step, f"{', '.join(step.rows)} must be parallel, and their extents known")
    shape = (dim(step.parts), *(dim(e or 0) for e in extents))
    held = Tensor(step.tile, first.value.dtype, shape, padded_strides(shape, step.pad))
    at_part: tuple[Expr, ...] = (part, *(Var(r.var) for r in rows))
    moved = substitute(f.body, {Var(f.var): part * length + Var(f.var)})
    inner = (*before, first, f.replace(extent=dim(length), body=moved), Store(held.name, at_part, scalar_of(first)))
    total = Init(step.total, identity(how, held.dtype))
    at = tile.For(again_part.name, dim(step.parts), "reduce", SERIAL, ())
    load = Load(held.name, (Var(at.var), *at_part[1:]), held.dtype)
    body = (total, at.replace(body=(Accum(total.name, how, load),)), *epilogue_of_total(before, first, total, after))
    made: Body = (
        tile.Alloc(held, step.space),
        tile.For(part.name, dim(step.parts), "parallel", SERIAL, wrap(rows, inner)),
        *copy_nest(rows, loop_variables(step, step.combining, len(rows)), body),
    )
    if rows:
        return kernel.replace(body=replaced(kernel.body, rows[0], made))
    return kernel.replace(body=bodies(kernel.body, lambda body: made if first in body else None))


def _enclosing_body(body: Body, step: SplitReduction) -> Body:
    """The statements among which the accumulator is initialised."""
    for s in body:
        match s:
            case Init(name) if name == step.accumulator:
                return body
            case tile.For(body=inner) | If(body=inner) if found := _enclosing_body(inner, step):
                return found
    return ()


def combining_operation(f: tile.For, first: Init, step: SplitReduction) -> str:
    """The operation of a reduction that starts at its identity and can be split into equal parts."""
    if not isinstance(f.extent, Const) or int(f.extent.value) % step.parts:
        raise ScheduleError(step, f"{step.parts} parts of {step.loop} would differ in length")
    ways = {n.op for n in f.walk() if isinstance(n, Accum) and n.name == step.accumulator}
    how = ways.pop() if len(ways) == 1 else ""
    if not how or first.value is not identity(how, first.value.dtype):
        raise ScheduleError(step, f"{step.accumulator} begins with more than nothing, or is combined in two ways")
    return how


def scalar_of(s: Init) -> Var:
    return Var(s.name, s.value.dtype)


def find_reduction(body: Body, step: SplitReduction) -> tuple[Body, Init, tile.For, Body]:
    """A reduction as the statements before it, its initialisation, its loop, and the statements after it."""
    place = next((n for n, s in enumerate(body) if isinstance(s, Init) and s.name == step.accumulator), None)
    if place is None or place + 1 >= len(body):
        raise ScheduleError(step, f"{step.accumulator} does not begin just inside {step.rows[-1:] or 'a loop'}")
    first, f = body[place], body[place + 1]
    if not isinstance(f, tile.For) or f.var != step.loop or f.kind != "reduce" or not isinstance(first, Init):
        raise ScheduleError(step, f"{step.accumulator} is not summed by {step.loop} alone")
    if not all(isinstance(s, Let) for s in body[:place]):
        raise ScheduleError(step, f"{step.accumulator} begins after something other than a value")
    return body[:place], first, f, body[place + 2 :]


def epilogue_of_total(before: Body, first: Init, total: Init, after: Body) -> Body:
    """The statements after the sum, with the values before it inlined and the sum renamed."""
    table: dict[Expr, Expr] = {scalar_of(first): scalar_of(total)}
    for s in before:
        if isinstance(s, Let):
            table[Var(s.name, s.value.dtype)] = substitute(s.value, table)
    return substitute(after, table)
