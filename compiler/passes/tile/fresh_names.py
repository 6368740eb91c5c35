"""Rename what a heuristic's schedule creates where the kernel already uses the name.

Heuristics name loops and tiles after their origins, which may clash with other names of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from compiler.ir import isomorphism, loop
from compiler.ir.expr import fresh
from compiler.ir.statement import Kernel, Let, Program
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.steps import apply_step, bound_names
from compiler.schedule.name_suffixes import strings
from compiler.schedule.steps import NameTaken, Schedule, Step, names_made, naming_fields, temporaries_made


def fresh_names(program: Program, kernel: Kernel, schedule: Schedule) -> Schedule:
    """The schedule, renamed, for a kernel of a Loop IR program. Raises ScheduleError for a step that does not apply."""
    created = {name for step in schedule.steps for name in names_made(step)}
    nodes = [n for s in kernel.body for n in s.walk()]
    taken = {p.name for p in kernel.params} | {n.name for n in nodes if isinstance(n, Let)}
    if not created & (taken | {n.var for n in nodes if isinstance(n, loop.For)}):
        return schedule
    program = loop_to_tile(program.replace(kernels=(kernel,)))
    kernel = program.kernels[0]
    renamed: dict[str, str] = {}
    steps: list[Step] = []
    for original in schedule.steps:
        step = renamed_step(original, renamed)
        try:
            program, kernel = apply_step(program, kernel, step)
        except NameTaken as problem:
            if not problem.names <= set(names_made(step)):
                raise
            before, step = step, with_fresh_names(step, problem.names, created | set(bound_names(kernel)))
            renamed |= dict(zip(names_made(before), names_made(step), strict=True))
            created |= set(names_made(step))
            program, kernel = apply_step(program, kernel, step)
        steps.append(step)
    return Schedule(tuple(steps))


def buffers_of(program: Program, schedules: Iterable[Schedule]) -> set[str]:
    """The names of a program's buffers and of the temporaries that schedules add to it."""
    buffers = {t.name for t in (*program.inputs, *program.outputs, *program.temps)}
    return buffers.union(*map(temporaries_made, schedules))


def own_temporaries(kernel: Kernel, schedule: Schedule, taken: set[str]) -> Schedule:
    """Rename the schedule's own temporaries that are in `taken`, and add their names to `taken`."""
    temporaries = temporaries_made(schedule)
    used = {*taken, *isomorphism.names(kernel), *(name for step in schedule.steps for name in names_made(step))}
    table = {name: fresh(f"{name}_", used) for name in sorted(temporaries & taken)}
    taken |= {table.get(name, name) for name in temporaries}
    return Schedule(tuple(renamed_step(step, table) for step in schedule.steps)) if table else schedule


def renamed_step(step: Step, table: Mapping[str, str]) -> Step:
    """The step with loops, buffers and scalars renamed by the table; stems of names stay."""
    not_renamed = ("level", "space", "how", "instruction", *step.stems)
    return step.replace(**{f: _rename(getattr(step, f), table) for f in type(step).fields if f not in not_renamed})


def rename_schedule(
    schedule: Schedule,
    table: Mapping[str, str],
    choose_names: Callable[[Iterable[str], dict[str, str]], dict[str, str]],
) -> tuple[Schedule, dict[str, str]]:
    """The schedule renamed by `table`, and the table extended by the names that the steps create.

    `called(names, table)` returns free names for those that are not in the table.
    """
    known, steps = dict(table), []
    for step in schedule.steps:
        plain = [f for f in naming_fields(type(step)) if f not in step.stems]
        known |= choose_names(strings(tuple(getattr(step, f) for f in plain)), known)
        stems = known | choose_names(strings(tuple(getattr(step, f) for f in step.stems)), known)
        new = renamed_step(step, known).replace(**{f: _rename(getattr(step, f), stems) for f in step.stems})
        renamed = dict(zip(names_made(step), names_made(new), strict=True))
        taken = set(known.values())
        new = with_fresh_names(new, {b for a, b in renamed.items() if a not in known} & taken, taken)
        known |= dict(zip(names_made(step), names_made(new), strict=True))
        steps.append(new)
    return Schedule(tuple(steps)), known


def _rename(value: Any, table: Mapping[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_rename(v, table) for v in value)
    return table.get(value, value) if isinstance(value, str) else value


def with_fresh_names(step: Step, names: Set[str], taken: Set[str]) -> Step:
    """Append underscores to the step's names, or stems of names, in `names` until they are not in `taken`."""
    for field in naming_fields(type(step)) if names else ():
        value = getattr(step, field)
        for n in range(1 if isinstance(value, str) else len(value)):
            before, other = set(names_made(step)), _append_underscore(step, field, n)
            if not (before - set(names_made(other))) & names:
                continue
            while (set(names_made(other)) - before) & taken:
                other = _append_underscore(other, field, n)
            step = other
    return step


def _append_underscore(step: Step, field: str, at: int) -> Step:
    value = getattr(step, field)
    if isinstance(value, str):
        return step.replace(**{field: f"{value}_"})
    return step.replace(**{field: tuple(f"{x}_" if n == at else x for n, x in enumerate(value))})
