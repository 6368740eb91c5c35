"""The schedule step `permute`: copy a buffer into a temporary with its axes in another order, or padded rows."""

from __future__ import annotations

from compiler.ir.expr import Expr, Load, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Kernel, Store
from compiler.passes.tile.nests import find_input, loop_variables, loops_along
from compiler.schedule.gpu import permuted_copy
from compiler.schedule.steps import Permute, ScheduleError


def permute(kernel: Kernel, step: Permute) -> Kernel:
    """`permute("x", "t", (1, 0), into=("t_at0", "t_at1"))`

    before:
        for j in serial(4):
            y[j] = x[7, j]
    after:
        for t_at0 in serial(4):
            for t_at1 in serial(8):
                t[t_at0, t_at1] = x[t_at1, t_at0]
        for j in serial(4):
            y[j] = t[j, 7]
    """
    buffer = find_input(kernel, step, step.buffer)
    if sorted(step.order) != list(range(len(buffer.shape))):
        raise ScheduleError(step, f"{step.order} are not the {len(buffer.shape)} axes of {step.buffer}")
    every = step.every or (1,) * len(buffer.shape)
    if len(every) != len(buffer.shape) or min(every) < 1:
        raise ScheduleError(step, f"{every} are not steps along the {len(buffer.shape)} axes of {step.buffer}")
    held = permuted_copy.held(step, buffer)
    loops = loop_variables(step, step.into, len(held.shape))
    index = tuple(loops[step.order.index(d)] * every[d] for d in range(len(loops)))
    copy = Store(held.name, loops, Load(buffer.name, index, buffer.dtype))
    found = {n for s in kernel.body for n in s.walk() if isinstance(n, Load) and n.buffer == buffer.name}
    if not all(_hits_multiples_only(e, n) for x in found for e, n in zip(x.index, every, strict=True)):
        raise ScheduleError(step, f"kernel {kernel.name} loads elements of {step.buffer} between those of {every}")
    table: dict[Expr, Expr] = {n: permuted_copy.load(n, step) for n in found}
    body = (*loops_along(loops, held.shape, copy), *substitute(kernel.body, table))
    return kernel.replace(body=body, params=(*kernel.params, held), writes=(*kernel.writes, held.name))


def _hits_multiples_only(e: Expr, step: int) -> bool:
    """Whether an index hits only every `step`-th element."""
    terms, rest = linear(e)
    return all(c % step == 0 for c in (*terms.values(), rest))
