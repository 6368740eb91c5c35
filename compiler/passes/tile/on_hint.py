"""A kernel with symbolic sizes in, its schedule out: that of the sizes to expect, as far as it holds for all sizes.

A heuristic sees the kernel with its hints for sizes. Of what it chooses, steps stay that apply to the kernel as it is
and leave no tile whose size is unknown; loops that are bound differently than meant are still right, only slower.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir import tile
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, SymbolicError, sizes_in, substitute
from compiler.ir.statement import Kernel, Program
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.steps import apply_step
from compiler.schedule.steps import Bind, Collapse, Fold, Reorder, Schedule, ScheduleError, Split, Stage

Choose = Callable[[Kernel], Schedule]
# Steps of which each alone leaves a kernel that runs well enough; others only make sense together.
APART = (Bind, Collapse, Fold, Reorder, Split, Stage)


def on_hint(program: Program, kernel: Kernel, choose: Choose, plain: Choose) -> Schedule:
    """The schedule of one kernel of a Loop IR program; `plain` chooses without tensor instructions."""
    table = {s: Const(s.hint, i64) for s in sizes_in(kernel)}
    likely: Kernel = substitute(kernel, table)  # type: ignore[call-overload]
    wanted = choose(likely)
    if not all(isinstance(step, APART) for step in wanted.steps):
        wanted = plain(likely)
    program = loop_to_tile(program)
    kernel = next(k for k in program.kernels if k.name == kernel.name)
    kept = []
    for step in wanted.steps:
        try:
            changed, new = apply_step(program, kernel, step)
        except (ScheduleError, SymbolicError):
            continue
        if not any(isinstance(n, tile.Alloc) and sizes_in(n) for s in new.body for n in s.walk()):
            program, kernel = changed, new
            kept.append(step)
    return Schedule(tuple(kept))
