"""The schedule step `partition` on Tile IR: a loop in; loops over parts of its iterations, simplified, out."""

from __future__ import annotations

from itertools import pairwise

from compiler.analysis.breakpoints import part_of, written_out
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const, substitute
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, Let, Stmt, Store
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
    written = written_out(f.body)
    body = f.body if written is None else (written,)
    if f.kind == "scan" or not all(isinstance(s, Let | Accum | Store) for s in body):
        raise ScheduleError(step, f"{f.var} does more than name values, add them up and store them")
    parts = []
    for name, (start, end) in zip(step.into, pairwise(bounds), strict=True):
        own = _with_own_names(body, name) if start else body
        inside = part_of(own, Var(f.var), start, end, ranges, name)
        parts.append(f.replace(var=name, extent=const(end - start), body=inside))
    return tuple(parts)


def _with_own_names(body: tuple[Stmt, ...], part: str) -> tuple[Stmt, ...]:
    """The body with values that it names called after the part, since a kernel has each name once."""
    made: list[Stmt] = []
    table: dict[Expr, Expr] = {}
    for s in body:
        (own,) = substitute((s,), table)
        if isinstance(s, Let):
            table[Var(s.name, s.value.dtype)] = Var(f"{s.name}_{part}", s.value.dtype)
            own = own.replace(name=f"{s.name}_{part}")
        made.append(own)
    return tuple(made)
