"""A loop nest and a target in, a schedule out: the cheapest of those that there are, by the estimates of the target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.ir.statement import Kernel
from compiler.schedule import space
from compiler.schedule.steps import Schedule
from compiler.targets.target import Target


def choose(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """A schedule for `kernel`; `private` names the temporaries that no other kernel uses."""
    return next(space.space(kernel, private, target)).schedule


def every(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Schedule]:
    """All schedules for `kernel`, the chosen one first."""
    return (found.schedule for found in space.space(kernel, private, target))


def plain(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """A schedule that takes contractions as it takes other sums."""
    return next(space.plain(kernel, private, target)).schedule
