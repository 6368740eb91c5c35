"""A kernel with symbolic sizes in, its schedule out: that of the sizes to expect, as far as it holds for all sizes.

A heuristic sees the kernel with its hints for sizes, made odd so that nothing seems to divide them. Of what it chooses,
steps stay that apply to the kernel as it is and make no tile that is of unknown size, or larger than at the hints. What
is left is right for every size, and may be slow where sizes are far from what was to be expected.

Tensor instructions need all of their steps. They are for products that are summed over a known depth, of buffers whose
rows are as far apart as products of sizes say: only of those do odd hints tell what divides them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from compiler.ir import loop, tile
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Size, SymbolicError, sizes_in, substitute
from compiler.ir.index import has_sizes, linear
from compiler.ir.statement import Kernel, Program
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.steps import apply, apply_step
from compiler.schedule.steps import Bind, Collapse, Fold, Reorder, Schedule, ScheduleError, Split, Stage, Step

Choose = Callable[[Kernel], Schedule]
Lower = Callable[[Program], object]
# Steps of which each alone leaves a kernel that runs well enough; others only make sense together.
APART = (Bind, Collapse, Fold, Reorder, Split, Stage)


def on_hint(program: Program, kernel: Kernel, choose: Choose, plain: Choose, lower: Lower) -> Schedule:
    """The schedule of one kernel of a Loop IR program.

    `plain` chooses without tensor instructions. `lower` takes a program of the scheduled kernel alone further down; a
    schedule for which it raises ValueError is given up for one with fewer kinds of steps.
    """
    likely: Kernel = substitute(kernel, {s: Const(_odd(s), i64) for s in sizes_in(kernel)})  # type: ignore[call-overload]
    alone, expected = (loop_to_tile(program.replace(kernels=(k,))) for k in (kernel, likely))
    wanted = choose(likely)
    if not all(isinstance(step, APART) for step in wanted.steps):
        if _is_regular(kernel) and _applies(alone, wanted, lower):
            return wanted
        wanted = plain(likely)
    kept = list(_kept(alone, expected, wanted))
    tried = (kept, [x for x in kept if not isinstance(x, Stage | Fold)],
             [x for x in kept if isinstance(x, Bind) and x.level == "blocks"])  # fmt: skip
    for steps in tried:
        made = Schedule(tuple(steps))
        try:
            lower(apply(alone, alone.kernels[0], made))
        except ValueError:  # a ScheduleError among them
            continue
        return made
    return Schedule()


def _odd(s: Size) -> int:
    """An odd number near what a size is expected to be."""
    return max(s.hint - 1 + s.hint % 2, s.low | 1)


def _is_regular(kernel: Kernel) -> bool:
    """Sums are over known extents, and rows of all buffers begin at products of sizes."""
    loops = (n for s in kernel.body for n in s.walk() if isinstance(n, loop.For))
    strides = (linear(s) for p in kernel.params for s in p.strides)
    return all(f.kind == "parallel" or not has_sizes(f.extent) for f in loops) and all(
        len(terms) + bool(rest) <= 1 for terms, rest in strides
    )


def _applies(program: Program, wanted: Schedule, lower: Lower) -> bool:
    """All steps apply, and what they give can be lowered."""
    try:
        made = apply(program, program.kernels[0], wanted)
        if any(sizes_in(n) for n in _tiles(made.kernels[0])):
            return False
        lower(made)
    except ValueError:
        return False
    return True


def _kept(program: Program, likely: Program, wanted: Schedule) -> Iterator[Step]:
    """The steps that apply to the kernel of `program` as to that of `likely`."""
    kernel, other = program.kernels[0], likely.kernels[0]
    for step in wanted.steps:
        likely, other = apply_step(likely, other, step)
        try:
            changed, new = apply_step(program, kernel, step)
        except (ScheduleError, SymbolicError):
            continue
        expected = {n.tensor.name: _elements(n) for n in _tiles(other)}
        if all(not sizes_in(n) and _elements(n) <= expected.get(n.tensor.name, 0) for n in _tiles(new)):
            program, kernel = changed, new
            yield step


def _tiles(kernel: Kernel) -> Iterator[tile.Alloc]:
    return (n for s in kernel.body for n in s.walk() if isinstance(n, tile.Alloc))


def _elements(a: tile.Alloc) -> int:
    return math.prod(int(n.value) for n in a.tensor.shape if isinstance(n, Const))
