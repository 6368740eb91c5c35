"""Applications of passes and schedule steps, numbered in the order of a lowering, with hooks: a gate and a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.schedule.steps import Schedule


@dataclass(frozen=True)
class Application:
    """One application of a pass or schedule step. A program is None where the pass reads or returns text.

    For a schedule step, `part_of` names the pass, `kernel` the kernel that it changes, and `name` is the step's text.
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
# Called with the name and number of an optional pass or schedule step: whether to apply it, or the steps to apply
# instead.
Gate = Callable[[str, int], bool | Schedule]


@dataclass
class Applications:
    """The counter of a lowering and its hooks. `changed` is set once the gate refuses or replaces a step."""

    gate: Gate | None = None
    trace: Trace | None = None
    number: int = 0
    changed: bool = False

    @property
    def watched(self) -> bool:
        """Whether a gate or a trace is set, so that steps need names."""
        return self.gate is not None or self.trace is not None

    def selected(self, name: str) -> bool | Schedule:
        """Count the next application and return the gate's answer for it."""
        self.number += 1
        return True if self.gate is None else self.gate(name, self.number)

    def begins(self, name: str, optional: bool) -> bool:
        """Whether to apply the next pass. The gate is asked only about `optional` passes."""
        if optional:
            return bool(self.selected(name))
        self.number += 1
        return True

    def told(self, name: str, stage: str, before: Any, after: Any, within: bool, kernel: str = "") -> None:
        """Report the last application to the trace. With a `kernel` it is a step of that kernel's schedule."""
        if self.trace is not None:
            part_of = "schedule" if kernel else ""
            self.trace(Application(self.number, name, stage, before, after, within, part_of, kernel))
