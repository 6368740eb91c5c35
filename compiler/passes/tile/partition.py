"""The schedule step `partition` on Tile IR: a loop in; loops over parts of its iterations, simplified, out."""

from __future__ import annotations

from itertools import pairwise

from compiler.analysis.breakpoints import part_of, written_out
from compiler.ir import tile
from compiler.ir.expr import Const, Var, const
from compiler.ir.ranges import Range
from compiler.ir.statement import Stmt
from compiler.schedule.steps import Partition, ScheduleError


def partition(step: Partition, f: tile.For, ranges: dict[str, Range]) -> tuple[Stmt, ...]:
    """`partition("i", (3,), into=("i0", "i1"))`

    before:
        for i in serial(20):
            y[i] = x[where(i < 3, i + 17, i - 3)]
    after:
        for i0 in serial(3):
            y[i0] = x[i0 + 17]
        for i1 in serial(17):
            y[i1 + 3] = x[i1]
    """
    if not isinstance(f.extent, Const):
        raise ScheduleError(step, f"{f.var} runs a number of times that is not known")
    bounds = (0, *step.at, int(f.extent.value))
    if any(a >= b for a, b in pairwise(bounds)):
        raise ScheduleError(step, f"cuts ascend within {f.var}, which has {bounds[-1]} iterations")
    if len(step.into) != len(step.at) + 1:
        raise ScheduleError(step, f"{len(step.at)} cuts make {len(step.at) + 1} loops, and {len(step.into)} are named")
    body = written_out(f.body)  # names would have to be other ones in each part
    if body is None:
        raise ScheduleError(step, f"{f.var} does more than store one value, or uses the values that it names too often")
    parts = []
    for name, (start, end) in zip(step.into, pairwise(bounds), strict=True):
        inside = part_of((body,), Var(f.var), start, end, ranges, name)
        parts.append(f.replace(var=name, extent=const(end - start), body=inside))
    return tuple(parts)
