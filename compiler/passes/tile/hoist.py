"""The schedule step `hoist`: move loop-invariant values out of a loop."""

from __future__ import annotations

from compiler.analysis.loop_invariants import fixed
from compiler.ir import tile
from compiler.ir.expr import Const
from compiler.ir.statement import Stmt
from compiler.schedule.steps import Hoist, ScheduleError


def hoist(step: Hoist, f: tile.For) -> tuple[Stmt, ...]:
    """`hoist("j")`

    before:
        for i in serial(8):
            for j in serial(10):
                s = f32(i) * 0.5
                y[i, j] = x[i, j] * s
    after:
        for i in serial(8):
            s = f32(i) * 0.5
            for j in serial(10):
                y[i, j] = x[i, j] * s
    """
    moved = fixed(f.body, {f.var}, bool(step.reads))
    if not moved:
        raise ScheduleError(step, f"no value that {f.var} names is the same in all of its iterations")
    if not isinstance(f.extent, Const) or not f.extent.value:
        raise ScheduleError(step, f"{f.var} may have no iteration, and then nothing that it names is there")
    return (*moved, f.replace(body=tuple(s for s in f.body if s not in moved)))
