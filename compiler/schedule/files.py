"""Text of a program's schedules: one section of steps per kernel, by the kernel's name.

```
with kernel("softmax"):
    bind("i", blocks)
    bind("j", vector, width=8, unroll=4)
with kernel("add"):
    pass
```
Steps outside any section are for the only kernel of the program.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Mapping

from compiler.ir.text import syntax
from compiler.schedule import steps
from compiler.schedule.steps import Schedule

ONLY = ""  # stands for the name of the program's only kernel


def show_schedules(schedules: Mapping[str, Schedule]) -> str:
    """The text of the schedules, with a section for each kernel in order; `parse` reads it."""
    return "".join(
        f'with kernel("{name}"):\n' + textwrap.indent(steps.show(schedule) or "pass\n", "    ")
        for name, schedule in schedules.items()
    )


def parse(text: str) -> dict[str, Schedule]:
    """Schedules by kernel name, `ONLY` for steps outside a section; raises ValueError with the line."""
    try:
        body = syntax(text).body
    except SyntaxError as e:
        raise ValueError(f"schedule, line {e.lineno}: {e.msg}") from e
    made: dict[str, Schedule] = {}
    alone = [s for s in body if not isinstance(s, ast.With)]
    for s in body:
        match s:
            case ast.With([ast.withitem(ast.Call(ast.Name("kernel"), [ast.Constant(str() as name)], []))], inner):
                if name in made or not name:
                    raise ValueError(f"schedule, line {s.lineno}: kernel {name} has a section before")
                made[name] = Schedule(tuple(steps.step(x) for x in inner if not isinstance(x, ast.Pass)))
            case ast.With():
                raise ValueError(f'schedule, line {s.lineno}: a section begins with: with kernel("NAME"):')
    if alone and made:
        raise ValueError(f"schedule, line {alone[0].lineno}: {ast.unparse(alone[0])} is in no kernel's section")
    return {ONLY: Schedule(tuple(map(steps.step, alone)))} if alone else made


def named(schedules: Mapping[str, Schedule], kernels: Iterable[str]) -> dict[str, Schedule]:
    """Replace the key `ONLY` by the name of the only kernel; raises ValueError if there are several kernels."""
    names = list(kernels)
    if ONLY in schedules and len(names) != 1:
        raise ValueError(
            f"steps alone are for a program of one kernel, this one has {len(names)}: "
            f'begin a section of steps with kernel("NAME"): for any of {", ".join(names)}'
        )
    return {name or names[0]: schedule for name, schedule in schedules.items()}
