"""The schedule step `multicast`: blocks of a cluster that need the same tile copy it together, a part each."""

from __future__ import annotations

from compiler.ir import tile
from compiler.ir.expr import Var, names
from compiler.ir.rewrite import replaced
from compiler.ir.statement import Kernel, Let, within
from compiler.passes.tile.nests import loops_in
from compiler.schedule.steps import Multicast, ScheduleError


def multicast(kernel: Kernel, step: Multicast) -> Kernel:
    """`multicast("t", "i")`

    before:
        for i in cluster(2):
            t = shared(f32[16, 32], swizzle=128)
            copy(t[0: +16, 0: +32], x[0: +16, 0: +32], "tma")
            y[i] = t[0, i]
    after:
        for i in cluster(2):
            t = shared(f32[16, 32], swizzle=128)
            copy(t[0: +16, 0: +32], x[0: +16, 0: +32], "tma", multicast=i)
            y[i] = t[0, i]
    """
    loop = next((f for _, f in loops_in(kernel.body) if f.var == step.loop), None)
    if loop is None or loop.bind.level != "cluster":
        raise ScheduleError(step, f"kernel {kernel.name} has no loop {step.loop} over the blocks of a cluster")
    copy = next((s for s in within(loop.body, tile.Copy) if s.target.buffer == step.tile and s.how == "tma"), None)
    if copy is None:
        raise ScheduleError(step, f"no tensor copy within {step.loop} fills {step.tile}")
    varying = {step.loop}
    for s in within(loop.body, Let):
        varying |= {s.name} if names(s.value) & varying else set()
    if names(copy) & varying:
        raise ScheduleError(step, f"each block of {step.loop} has another {step.tile}")
    return kernel.replace(body=replaced(kernel.body, copy, (copy.replace(multicast=Var(step.loop)),)))
