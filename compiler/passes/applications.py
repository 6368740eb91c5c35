"""Applications of passes and schedule steps, numbered over a lowering: a gate is asked before each, a trace told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.schedule.steps import Schedule


@dataclass(frozen=True)
class Application:
    """One application of a pass; programs are None where text came in or out.

    That of a schedule step says which pass it is `part_of` and the `kernel` that it changes, and is named by its text.
    """

    number: int
    name: str
    stage: str
    before: Any
    after: Any
    within: bool  # before and after are of the same stage
    part_of: str = ""
    kernel: str = ""


Trace = Callable[[Application], None]
# Whether an optional pass, or a step of a schedule, of this name and number is applied; or the steps to apply instead.
Gate = Callable[[str, int], bool | Schedule]


@dataclass
class Applications:
    """The count of a lowering, and whom to ask and to tell; `changed` once the gate has refused or replaced a step."""

    gate: Gate | None = None
    trace: Trace | None = None
    number: int = 0
    changed: bool = False

    @property
    def watched(self) -> bool:
        """Whether anyone asks for the names of steps."""
        return self.gate is not None or self.trace is not None

    def selected(self, name: str) -> bool | Schedule:
        """What the gate says of the next application."""
        self.number += 1
        return True if self.gate is None else self.gate(name, self.number)

    def begins(self, name: str, optional: bool) -> bool:
        """Whether a pass is applied next: the gate is asked for those that are `optional`."""
        if optional:
            return bool(self.selected(name))
        self.number += 1
        return True

    def told(self, name: str, stage: str, before: Any, after: Any, within: bool, kernel: str = "") -> None:
        """Tell what the last application made; one of a kernel is a step of its schedule."""
        if self.trace is not None:
            part_of = "schedule" if kernel else ""
            self.trace(Application(self.number, name, stage, before, after, within, part_of, kernel))
