"""Complete schedules for a target: decisions that follow from a kernel and its schedule become arguments of steps."""

from __future__ import annotations

from compiler.ir.statement import Kernel, Program
from compiler.passes.cpu import complete_schedule as cpu
from compiler.passes.gpu import complete_schedule as gpu
from compiler.schedule.steps import Schedule
from compiler.targets.target import Target


def completed(program: Program, kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """Complete the schedule of a kernel of a Loop IR program. Raises ScheduleError for a step that does not apply."""
    match target.kind:
        case "cpu":
            return cpu.completed(program, kernel, schedule, target)
        case "cuda":
            return gpu.completed(program, kernel, schedule, target)
    return schedule
