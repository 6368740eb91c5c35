"""Apply schedules: bind every loop of Tile IR as the kernel's schedule says."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.ir.statement import Kernel, Program
from compiler.ir.tensor import Tensor
from compiler.passes.applications import Applications
from compiler.passes.tile import legality
from compiler.passes.tile.steps import apply_step
from compiler.schedule.steps import Schedule, ScheduleError, Step, show_step
from compiler.targets.target import Target


def apply_schedules(
    program: Program, schedules: Mapping[str, Schedule], target: Target, applications: Applications
) -> Program:
    """Apply the steps to each kernel.

    With a trace, kernels change one after the other within the whole program. Without one, each is changed next to only
    those kernels that share a temporary with it, because a model has hundreds.
    """
    if applications.trace is not None:
        for k in program.kernels:
            program = _schedule_kernel(program, k, schedules, target, applications)
        return program
    kernels: list[Kernel] = []
    remaining: dict[str, Tensor] = {t.name: t for t in program.temps}
    temps = dict(remaining)
    for k in program.kernels:
        own = [p.name for p in k.params if p.name in temps]
        changed = _schedule_kernel(neighbours(program, k), k, schedules, target, applications)
        kernels.append(changed.kernels[0])
        for name in set(own) - {t.name for t in changed.temps}:
            del remaining[name]
        remaining |= {t.name: t for t in changed.temps if t.name not in remaining}
    return program.replace(kernels=tuple(kernels), temps=tuple(remaining.values()))


def neighbours(program: Program, kernel: Kernel) -> Program:
    """A program of the kernel and those that share a temporary with it."""
    used = {p.name for p in kernel.params}
    own = {t.name: t for t in program.temps if t.name in used}
    sharing = (k for k in program.kernels if any(p.name in own for p in k.params))
    return program.replace(
        kernels=tuple(dict.fromkeys((kernel, *sharing))),
        temps=tuple(own[p.name] for p in kernel.params if p.name in own),
    )


def _schedule_kernel(
    program: Program, kernel: Kernel, schedules: Mapping[str, Schedule], target: Target, applications: Applications
) -> Program:
    """The program after all steps of a kernel that the gate lets pass, each an application of its own."""
    applied: list[Step] = []
    for step in schedules.get(kernel.name, Schedule()).steps:
        name = show_step(step) if applications.watched else ""
        decision = applications.selected(name)
        replacement = decision.steps if isinstance(decision, Schedule) else (step,) if decision else ()
        applications.changed = applications.changed or replacement != (step,)
        before = program
        for replacing_step in replacement:
            try:
                program, kernel = apply_step(program, kernel, replacing_step)
            except ScheduleError as problem:
                if applications.changed:
                    problem.add_note("a step before it was left out or replaced")
                raise
            applied.append(replacing_step)
        if replacement:
            applications.told(name, "tile", before, program, within=True, kernel=kernel.name)
    legality.check(kernel, Schedule(tuple(applied)), target)
    return program
