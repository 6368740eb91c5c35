"""A kernel and its schedule for a CPU in; the schedule with what follows from it out: how tiles are filled and lie,
and which columns are made again."""

from __future__ import annotations

from typing import Any

from compiler.analysis.left_over import again_problem, remainder
from compiler.ir.expr import const, static
from compiler.ir.index import value_range
from compiler.ir.statement import Kernel, Program
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.instruction_options import Operands, columns_in, operands, with_options
from compiler.passes.tile.pack import allocated, filled_by
from compiler.passes.tile.schedule import neighbours
from compiler.passes.tile.steps import apply
from compiler.schedule.steps import Pack, Schedule, Tensorize
from compiler.targets.target import Target, instruction

SELDOM = 32  # one column in so many may be computed twice to save an instance of the code
PAGE, LINE = 4096, 64  # bytes: rows that are whole pages would compete for the same few lines of a cache


def completed(program: Program, kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """The schedule of a kernel of a Loop IR program with what follows from it: how tiles are filled and lie, and which
    columns are made again.

    Raises ScheduleError for a step that does not apply.
    """
    if not any(isinstance(s, Pack | Tensorize) for s in schedule.steps):
        return schedule
    alone = loop_to_tile(neighbours(program, kernel))
    scheduled = apply(alone, alone.kernels[0], schedule).kernels[0]
    told = Schedule(tuple(_packed(s, scheduled) if isinstance(s, Pack) else s for s in schedule.steps))
    return with_options(alone, alone.kernels[0], told, _again(scheduled, target))


def _packed(step: Pack, scheduled: Kernel) -> Pack:
    """The step with the vectors that its loops have room for; rows of whole pages are a line longer."""
    (held,) = (t for t in allocated(scheduled.body) if t.name == step.tile)
    row = min((static(n) for n, by in zip(held.shape, held.strides, strict=True) if by is const(1)), default=1)
    whole = len(held.shape) > 1 and row * held.dtype.bytes % PAGE == 0
    pad = LINE // held.dtype.bytes if whole else 0
    return step.replace(width=filled_by(scheduled, step.tile), pad=step.pad or pad)


def _again(scheduled: Kernel, target: Target) -> dict[Operands, dict[str, Any]]:
    """Which sums along vectors make columns that are left over again: those that have few such."""
    options: dict[Operands, dict[str, Any]] = {}
    for s, columns, ranges in columns_in(scheduled):
        row = instruction(target, s.instruction)
        twice = row.n - remainder(columns, row.n)
        seldom = twice <= row.n and twice * SELDOM <= (value_range(columns, ranges)[0] or 0)
        if seldom and not again_problem(columns, row, ranges):
            options[operands(s)] = {"again": True}
    return options
