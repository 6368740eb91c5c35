"""The schedule step `flatten`: merge adjacent axes of a buffer that are one axis of its memory."""

from __future__ import annotations

from compiler.ir.expr import Expr
from compiler.ir.index import simplify
from compiler.ir.rewrite import accesses
from compiler.ir.statement import Kernel
from compiler.ir.tensor import flattened
from compiler.passes.tile.nests import loops_in, ranges_of
from compiler.schedule.steps import Flatten, ScheduleError


def flatten(kernel: Kernel, step: Flatten) -> Kernel:
    """`flatten("w", 1, 2)`

    before:
        for i in serial(4):
            for lm in serial(48):
                y[i, lm] = w[i, lm // 8, lm % 8]
    after:
        for i in serial(4):
            for lm in serial(48):
                y[i, lm] = w[i, lm]
    """
    buffer = next((p for p in kernel.params if p.name == step.buffer), None)
    if buffer is None:
        raise ScheduleError(step, f"the kernel has no parameter {step.buffer}")
    if step.axis < 0 or step.axes < 2 or step.axis + step.axes > len(buffer.shape):
        raise ScheduleError(step, f"{step.buffer} has no {step.axes} axes from {step.axis} on, but {len(buffer.shape)}")
    view = flattened(buffer, step.axis, step.axes)
    if view is None:
        raise ScheduleError(step, f"the axes of {step.buffer} do not lie one after the other in memory")
    ranges = ranges_of(tuple(f for _, f in loops_in(kernel.body)))
    last = step.axis + step.axes

    def merge_axes(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        flat = index[step.axis]
        for e, extent in zip(index[step.axis + 1 : last], buffer.shape[step.axis + 1 : last], strict=True):
            flat = flat * extent + e
        return (*index[: step.axis], simplify(flat, ranges, index=True), *index[last:])

    body = accesses(kernel.body, lambda n: n.replace(index=merge_axes(n.index)) if n.buffer == step.buffer else None)
    return kernel.replace(body=body, params=tuple(view if p is buffer else p for p in kernel.params))
