"""A schedule that a heuristic chose in; out the same with other names for what it calls as its kernel calls something.

Heuristics name loops and tiles after those that they are made of, which others of a kernel may be called already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.ir import loop
from compiler.ir.statement import Kernel, Let, Program
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.steps import apply_step, bound
from compiler.schedule.steps import NameTaken, Schedule, Step, names_made


def fresh_names(program: Program, kernel: Kernel, schedule: Schedule) -> Schedule:
    """The schedule for a kernel of a Loop IR program; raises ScheduleError for a step that does not apply."""
    made = {name for step in schedule.steps for name in names_made(step)}
    nodes = [n for s in kernel.body for n in s.walk()]
    taken = {p.name for p in kernel.params} | {n.name for n in nodes if isinstance(n, Let)}
    if not made & (taken | {n.var for n in nodes if isinstance(n, loop.For)}):
        return schedule
    program = loop_to_tile(program.replace(kernels=(kernel,)))
    kernel = program.kernels[0]
    renamed: dict[str, str] = {}
    steps: list[Step] = []
    for given in schedule.steps:
        step = renamed_step(given, renamed)
        try:
            program, kernel = apply_step(program, kernel, step)
        except NameTaken as problem:
            if not problem.names <= set(names_made(step)):
                raise
            more = {name: _free(name, made | set(bound(kernel))) for name in sorted(problem.names)}
            made |= set(more.values())
            renamed |= more
            step = step.replace(**{f: _called(getattr(step, f), more) for f in step.makes})
            program, kernel = apply_step(program, kernel, step)
        steps.append(step)
    return Schedule(tuple(steps))


def renamed_step(step: Step, table: Mapping[str, str]) -> Step:
    """The step with loops, buffers and scalars called as the table says."""
    words = ("level", "space", "how", "instruction")
    return step.replace(**{f: _called(getattr(step, f), table) for f in type(step).fields if f not in words})


def _called(value: Any, table: Mapping[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_called(v, table) for v in value)
    return table.get(value, value) if isinstance(value, str) else value


def _free(name: str, taken: set[str]) -> str:
    """The name with as many underscores behind it as it takes."""
    while name in taken:
        name += "_"
    return name
