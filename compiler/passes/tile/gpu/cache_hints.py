"""The schedule step `cache_hints`: mark buffers that caches need not keep."""

from __future__ import annotations

from compiler.ir.statement import Kernel
from compiler.schedule.steps import CacheHints, ScheduleError


def cache_hints(kernel: Kernel, step: CacheHints) -> Kernel:
    """`cache_hints(("x",))`

    before:
        for i in serial(100):
            y[i] = x[i]
    after:
        for i in serial(100):
            y[i] = x[i]
    """
    read = {p.name for p in kernel.params} - set(kernel.writes)
    wrong = sorted((set(step.loads) - read) | (set(step.stores) - set(kernel.writes)))
    if wrong:
        raise ScheduleError(
            step,
            f"kernel {kernel.name} only reads {', '.join(sorted(read))}, and writes {', '.join(kernel.writes)}: "
            f"that is not so of {', '.join(wrong)}",
        )
    return kernel.replace(once=step.loads, past=step.stores)
