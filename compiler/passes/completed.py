"""A kernel, its schedule and a target in; the schedule with all that follows from it out, as arguments of its steps."""

from __future__ import annotations

from compiler.ir.statement import Kernel, Program
from compiler.passes.cpu import completed as cpu
from compiler.passes.gpu import completed as gpu
from compiler.schedule.steps import Schedule
from compiler.targets.target import Target


def completed(program: Program, kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """The schedule of a kernel of a Loop IR program; raises ScheduleError for a step that does not apply."""
    match target.kind:
        case "cpu":
            return cpu.completed(program, kernel, schedule, target)
        case "cuda":
            return gpu.completed(program, kernel, schedule, target)
    return schedule
