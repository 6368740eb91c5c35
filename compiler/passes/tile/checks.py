"""The schedule step `checks`: which data checks run ahead of the loops that need them."""

from __future__ import annotations

from compiler.analysis.vectors import NARROWEST
from compiler.ir.statement import Kernel
from compiler.schedule.steps import Checks, ScheduleError


def checks(kernel: Kernel, step: Checks) -> Kernel:
    """`checks(ahead=8)`

    before:
        for i in serial(100):
            y[i] = x[i]
    after:
        for i in serial(100):
            y[i] = x[i]
    """
    counts = (step.ahead, step.scalars, step.within, step.vectors)
    if min(counts) < 0:
        raise ScheduleError(step, "there is no negative number of iterations")
    if step.scalars & (step.scalars - 1) or 0 < step.scalars < NARROWEST:
        raise ScheduleError(step, f"whole vectors compare {NARROWEST} scalars or twice as many, and so on")
    return kernel.replace(checks=counts)
