"""The schedule step `raster` on Tile IR: the order in which the blocks of a result are made."""

from __future__ import annotations

from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, dim, op, static, substitute
from compiler.ir.index import simplify
from compiler.ir.statement import Kernel
from compiler.passes.tile.nests import find_nest, replace
from compiler.schedule.steps import Raster, ScheduleError


def raster(kernel: Kernel, step: Raster) -> Kernel:
    """`raster("i", "j", 2)`

    before:
        for i in serial(6):
            for j in serial(10):
                y[i, j] = x[i, j]
    after:
        for ij in serial(60):
            y[ij // 20 * 2 + ij % 2, ij // 2 % 10] = x[ij // 20 * 2 + ij % 2, ij // 2 % 10]

    Where `group` does not divide the iterations of the outer loop, the last group is smaller.
    """
    _, (outer, inner) = find_nest(kernel, step, (step.outer, step.inner))
    if not all(isinstance(f.extent, Const) and f.kind == "parallel" for f in (outer, inner)):
        raise ScheduleError(step, "its loops must be parallel, and their extents known")
    rows, columns = static(outer.extent), static(inner.extent)
    at, whole = Var(outer.var + inner.var), step.group * columns
    first = at // whole * step.group
    size: Expr = dim(step.group) if rows % step.group == 0 else op("min", dim(step.group), rows - first)
    table = {Var(outer.var): first + at % whole % size, Var(inner.var): at % whole // size}
    body = simplify(substitute(inner.body, table), {at.name: (0, rows * columns - 1)})
    made = tile.For(at.name, dim(rows * columns), outer.kind, outer.bind, body)
    return kernel.replace(body=replace(kernel.body, outer, (made,)))
