"""The schedule of a loop nest that a target's cost model estimates to be the cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.ir.statement import Kernel
from compiler.schedule import space
from compiler.schedule.steps import Schedule
from compiler.targets.target import Target


def choose(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """The cheapest schedule for `kernel` by estimate; `private` names the temporaries that no other kernel uses."""
    return next(space.space(kernel, private, target)).schedule


def every(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Schedule]:
    """All schedules for `kernel`, cheapest by estimate first."""
    return (found.schedule for found in space.space(kernel, private, target))


def plain(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """The cheapest schedule without tensor instructions: contractions are scheduled like other sums."""
    return next(space.plain(kernel, private, target)).schedule
