"""The schedule step `raster`: the order in which blocks compute the tiles of a result."""

from __future__ import annotations

from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, dim, names, op, substitute
from compiler.ir.index import simplify
from compiler.ir.rewrite import replaced
from compiler.ir.statement import Kernel
from compiler.ir.value_ranges import extent_range
from compiler.passes.tile.nests import find_nest
from compiler.schedule.steps import Raster, ScheduleError


def raster(kernel: Kernel, step: Raster) -> Kernel:
    """`raster("i", "j", 2, into="ij")`

    before:
        for i in serial(6):
            for j in serial(10):
                y[i, j] = x[i, j]
    after:
        for ij in serial(60):
            y[ij // 20 * 2 + ij % 2, ij // 2 % 10] = x[ij // 20 * 2 + ij % 2, ij // 2 % 10]

    If `group` does not divide the iterations of the outer loop, the last group is smaller.
    """
    _, (outer, inner) = find_nest(kernel, step, (step.outer, step.inner))
    if not all(f.kind == "parallel" for f in (outer, inner)) or outer.var in names(inner.extent):
        raise ScheduleError(step, "its loops must be parallel, and the inner one of one length")
    rows, total = outer.extent, outer.extent * inner.extent
    at, whole = Var(step.into), inner.extent * step.group
    first = at // whole * step.group
    divides = isinstance(rows, Const) and int(rows.value) % step.group == 0
    size: Expr = dim(step.group) if divides else op("min", dim(step.group), rows - first)
    table = {Var(outer.var): first + at % whole % size, Var(inner.var): at % whole // size}
    body = simplify(substitute(inner.body, table), {at.name: extent_range(total)})
    made = tile.For(at.name, total, outer.kind, outer.bind, body)
    return kernel.replace(body=replaced(kernel.body, outer, (made,)))
