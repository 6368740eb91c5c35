"""The schedule step `split_scan`: several blocks compute a long running total, each from the total before it."""

from __future__ import annotations

from compiler.analysis.nests import perfect, totalled, wrap
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Load, Var, dim, identity, static, substitute
from compiler.ir.statement import Accum, Init, Kernel, Let, Stmt, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.passes.tile.nests import SERIAL, copy_nest, loop_variables, pieces
from compiler.schedule.steps import ScheduleError, SplitScan


def split_scan(kernel: Kernel, step: SplitScan) -> Kernel:
    """`split_scan("t", "j", 2, "t_parts", total="t_sum", into=("j_part", "j_sum", "j_next", "j_before"),
    rows=("i_sum",))`

    before:
        for i in serial(3):
            t: f32 = 0.0
            for j in serial(8, scan):
                t += x[i, j]
                y[i, j] = t
    after:
        for j_part in serial(4):
            for i_sum in serial(3):
                t_sum: f32 = 0.0
                for j_sum in serial(2, reduce):
                    t_sum += x[i_sum, j_part * 2 + j_sum]
                t_parts[j_part, i_sum] = t_sum
        for j_next in serial(4):
            for i in serial(3):
                t: f32 = 0.0
                for j_before in serial(j_next, reduce):
                    t += t_parts[j_before, i]
                for j in serial(2, scan):
                    t += x[i, j_next * 2 + j]
                    y[i, j_next * 2 + j] = t

    The input is read twice, and each part adds up the totals of the parts before it.
    """
    rows, body = perfect(tile.For, kernel.body)
    match body:
        case (Init(name, first), tile.For(var=var, extent=Const(), kind="scan") as f) if (
            name == step.accumulator and var == step.loop
        ):
            how, head = _match_running_total(step, f.body)
        case _:
            raise ScheduleError(step, f"{step.loop} is not all that the rows of kernel {kernel.name} do")
    if first is not identity(how, first.dtype):
        raise ScheduleError(step, f"{step.accumulator} begins with more than nothing")
    extent = static(f.extent)
    count = -(-extent // step.length)
    part, total, following, before = loop_variables(step, step.into, 4)
    shape = (dim(count), *(r.extent for r in rows))
    held = Tensor(step.tile, first.dtype, shape, row_major(shape))
    place = tuple(Var(r.var) for r in rows)

    def moved(s: tuple[Stmt, ...], which: Var, inner: Expr) -> tuple[Stmt, ...]:
        return substitute(s, {Var(f.var): which * step.length + inner})

    scalar = Var(name, first.dtype)
    own = {scalar: Var(step.total, first.dtype)}  # names private to the first of the two nests
    own |= {Var(s.name, s.value.dtype): Var(f"{s.name}_sum", s.value.dtype) for s in head if isinstance(s, Let)}
    summed = substitute(moved(head, part, total), own)
    called = {scalar.name: step.total}
    summed = tuple(
        s.replace(name=called.get(s.name, f"{s.name}_sum")) if isinstance(s, Accum | Let) else s for s in summed
    )
    sums: tuple[Stmt, ...] = (
        Init(step.total, first),
        tile.For(total.name, pieces(f.extent, step.length, part)[1], "reduce", SERIAL, summed),
        Store(held.name, (part, *place), Var(step.total, first.dtype)),
    )
    sums = copy_nest(tuple(rows), loop_variables(step, step.rows, len(rows)), sums) if rows else sums
    known = Accum(name, how, Load(held.name, (before, *place), first.dtype))
    scanned: tuple[Stmt, ...] = (
        Init(name, first),
        tile.For(before.name, following, "reduce", SERIAL, (known,)),
        f.replace(extent=pieces(f.extent, step.length, following)[1], body=moved(f.body, following, Var(f.var))),
    )
    made = (
        tile.For(part.name, dim(count), "parallel", SERIAL, sums),
        tile.For(following.name, dim(count), "parallel", SERIAL, wrap(tuple(rows), scanned)),
    )
    return kernel.replace(body=made, params=(*kernel.params, held), writes=(*kernel.writes, held.name))


def _match_running_total(step: SplitScan, body: tuple[Stmt, ...]) -> tuple[str, tuple[Stmt, ...]]:
    """The operation of a running total, and the statements up to it, which do nothing else."""
    head = totalled(body)
    if not head:
        raise ScheduleError(step, f"{step.loop} is no running total")
    total = head[-1]
    assert isinstance(total, Accum)
    if total.name != step.accumulator:
        raise ScheduleError(step, f"{step.loop} totals {total.name}, not {step.accumulator}")
    return total.op, head
