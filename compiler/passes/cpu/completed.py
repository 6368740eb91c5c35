"""A kernel and its schedule for a CPU in; the schedule with what follows from it out: which columns are made again."""

from __future__ import annotations

from typing import Any

from compiler.analysis.left_over import again_problem, remainder
from compiler.ir.index import value_range
from compiler.ir.statement import Kernel, Program
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.instruction_options import Operands, columns_in, operands, with_options
from compiler.passes.tile.schedule import neighbours
from compiler.passes.tile.steps import apply
from compiler.schedule.steps import Schedule, Tensorize
from compiler.targets.target import Target, instruction

SELDOM = 32  # one column in so many may be computed twice to save an instance of the code


def completed(program: Program, kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """The schedule of a kernel of a Loop IR program, whose sums along vectors make columns left over again if few are.

    Raises ScheduleError for a step that does not apply.
    """
    rows = {s.instruction: instruction(target, s.instruction) for s in schedule.steps if isinstance(s, Tensorize)}
    if not any("b.k" in row.contiguous for row in rows.values()):
        return schedule
    alone = loop_to_tile(neighbours(program, kernel))
    scheduled = apply(alone, alone.kernels[0], schedule).kernels[0]
    options: dict[Operands, dict[str, Any]] = {}
    for s, columns, ranges in columns_in(scheduled):
        row = rows[s.instruction]
        twice = row.n - remainder(columns, row.n)
        if twice <= row.n and twice * SELDOM <= (value_range(columns, ranges)[0] or 0):
            options[operands(s)] = {"again": not again_problem(columns, row, ranges)}
    return with_options(alone, alone.kernels[0], schedule, options)
