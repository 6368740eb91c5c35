"""The schedule step `partition`: split a loop into loops over ranges of its iterations, each simplified."""

from __future__ import annotations

from itertools import pairwise

from compiler.analysis.breakpoints import part_of, written_out
from compiler.ir import tile
from compiler.ir.expr import Const, Var, const, substitute
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, Init, Let, Stmt, Store, within
from compiler.passes.tile.nests import ranges_of
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
    rows = (Init, tile.For) if f.kind == "parallel" else ()
    if f.kind == "scan" or not all(isinstance(s, (Let, Accum, Store, *rows)) for s in within(body)):
        raise ScheduleError(step, f"{f.var} does more than name values, add them up and store them")
    parts = []
    for name, (start, end) in zip(step.into, pairwise(bounds), strict=True):
        own = _rename_for_part(body, name) if start else body
        known = ranges | ranges_of(tuple(within(own, tile.For)))
        inside = part_of(own, Var(f.var), start, end, known, name)
        parts.append(f.replace(var=name, extent=const(end - start), body=inside))
    return tuple(parts)


def _rename_for_part(body: tuple[Stmt, ...], part: str) -> tuple[Stmt, ...]:
    """The body with its values, sums and loops renamed after the part, since names are unique in a kernel."""
    named = {Var(s.name, s.value.dtype): s.name for s in within(body) if isinstance(s, Let | Init)}
    named |= {Var(f.var): f.var for f in within(body, tile.For)}
    table = {v: v.replace(name=f"{name}_{part}") for v, name in named.items()}
    own = set(named.values())

    def renamed(s: Stmt) -> Stmt:
        match s:
            case Let(name) | Init(name) | Accum(name) if name in own:
                return s.replace(name=f"{name}_{part}")
            case tile.For(var=var, body=inner):
                return s.replace(var=f"{var}_{part}", body=tuple(map(renamed, inner)))
        return s

    return tuple(map(renamed, substitute(body, table)))
