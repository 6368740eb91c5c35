"""Schedule kernels with symbolic sizes: the schedule for the expected sizes, as far as it is valid for all sizes.

The heuristic sees the kernel with the hints for its sizes, made odd so that nothing seems to divide them. Of its
choices, those steps stay that apply to the kernel as it is and make no tile of unknown size, or larger than at the
hints. The result is right for every size, and may be slow for sizes far from the hints.

Tensor instructions need all of their steps. They are used for matmuls of buffers whose row strides are products of
sizes: only for those do odd hints tell what divides them. If small sizes would be a single tile, larger ones are tried.
A sum of unknown length cannot be split among blocks, and an instruction that stores its sums has to know how many there
are: the best schedule without both is taken. A grid of unknown size has one block per tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

from compiler.analysis.size_hints import regular, with_size_hints
from compiler.ir import loop, tile
from compiler.ir.expr import Const, SymbolicError, sizes_in
from compiler.ir.statement import Kernel, Program, within
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.steps import apply, apply_step
from compiler.schedule.steps import (
    Bind,
    Collapse,
    Persist,
    Reorder,
    Schedule,
    ScheduleError,
    Split,
    SplitReduction,
    SplitShifted,
    Stage,
    Step,
    StoreAt,
    StoreSums,
    Tensorize,
)

Choose = Callable[[Kernel], Schedule]
Choices = Callable[[Kernel], Iterator[Schedule]]
Lower = Callable[[Program], object]
# Factors of the hints that are tried in turn.
HINT_FACTORS = (1, 8, 64, 512)
MOST_SEARCHED = 1000  # schedules searched for one that splits and stores no sum
# Steps that are useful one by one; all others only make sense together.
INDEPENDENT_STEPS = (Bind, Collapse, StoreAt, Reorder, Split, Stage)


def symbolic_schedule(program: Program, kernel: Kernel, choices: Choices, plain: Choose, lower: Lower) -> Schedule:
    """The schedule of one kernel of a Loop IR program.

    `choices` yields all schedules, best first; `plain` chooses one without tensor instructions. `lower` lowers a
    program of the scheduled kernel alone further; if it raises ValueError, a schedule with fewer kinds of steps is
    tried.
    """
    tile_program = loop_to_tile(program.replace(kernels=(kernel,)))
    for factor in HINT_FACTORS if regular(kernel) else ():
        wanted = _first_for_any_size(choices(with_size_hints(kernel, factor)), kernel)
        if all(isinstance(step, INDEPENDENT_STEPS) for step in wanted.steps):
            break
        hinted = loop_to_tile(program.replace(kernels=(with_size_hints(kernel, factor),)))
        for made in _variants_for_any_size(wanted):
            if _is_applicable(tile_program, hinted, made, lower):
                return made
    guess = with_size_hints(kernel)
    wanted = _unroll_long_sums(plain(guess), kernel, plain)
    kept = list(_applicable_steps(tile_program, loop_to_tile(program.replace(kernels=(guess,))), wanted))
    candidates = (kept, [x for x in kept if not isinstance(x, Stage | StoreAt)],
             [x for x in kept if isinstance(x, Bind) and x.level == "blocks"])  # fmt: skip
    for steps in candidates:
        made = Schedule(tuple(steps))
        try:
            lower(apply(tile_program, tile_program.kernels[0], made))
        except ValueError:  # a ScheduleError among them
            continue
        return made
    return Schedule()


def _first_for_any_size(choices: Iterator[Schedule], kernel: Kernel) -> Schedule:
    """The first choice; if it uses tensor instructions, the first such that splits no sum of unknown length, and stores
    none."""
    sums = {f.var for f in within(kernel.body, loop.For) if f.kind == "reduce" and sizes_in(f.extent)}

    def multiplies(found: Schedule) -> bool:
        return any(isinstance(step, Tensorize) for step in found.steps)

    def is_fixed(found: Schedule) -> bool:
        return any(
            isinstance(step, StoreSums) or (isinstance(step, SplitReduction) and step.loop in sums)
            for step in found.steps
        )

    first = next(choices)
    if not multiplies(first) or not is_fixed(first):
        return first
    return next((x for x in islice(choices, MOST_SEARCHED) if multiplies(x) and not is_fixed(x)), first)


def _variants_for_any_size(wanted: Schedule) -> Iterator[Schedule]:
    """The schedule for loops of any length; then also for grids of any size."""
    steps = tuple(map(_for_any_extent, wanted.steps))
    yield Schedule(steps)
    if any(isinstance(step, Persist) for step in steps):
        yield Schedule(tuple(step for step in steps if not isinstance(step, Persist)))


def _for_any_extent(step: Step) -> Step:
    """The step with its last piece shortened instead of shifted, which needs a loop known to be long enough."""
    return Split(step.loop, step.factor, step.into) if isinstance(step, SplitShifted) else step


def _unroll_long_sums(wanted: Schedule, kernel: Kernel, plain: Choose) -> Schedule:
    """Unroll reductions of unknown length as for larger sizes, even if they take few vectors at the hints."""
    loops = within(kernel.body, loop.For)
    sums = {f.var for f in loops if f.kind == "reduce" and not isinstance(f.extent, Const)}
    short = {s for s in wanted.steps if isinstance(s, Bind) and s.loop in sums and dict(s.args).get("unroll") == 1}
    if not short:
        return wanted
    longer = plain(with_size_hints(kernel, HINT_FACTORS[1])).steps
    most = {s.loop: n for s in longer if isinstance(s, Bind) and (n := dict(s.args).get("unroll")) is not None}

    def unrolled(s: Step) -> Step:
        if isinstance(s, Bind) and s in short and s.loop in most:
            return s.replace(args=tuple((word, most[s.loop] if word == "unroll" else n) for word, n in s.args))
        return s

    return Schedule(tuple(map(unrolled, wanted.steps)))


def _is_applicable(program: Program, guess: Program, wanted: Schedule, lower: Lower) -> bool:
    """Whether all steps apply, no tile is larger than at the hints, and the result can be lowered."""
    try:
        made, other = (apply(p, p.kernels[0], wanted) for p in (program, guess))
        if not _has_no_larger_tiles(made.kernels[0], other.kernels[0]):
            return False
        lower(made)
    except ValueError:
        return False
    return True


def _has_no_larger_tiles(kernel: Kernel, guess: Kernel) -> bool:
    """Whether no tile is of unknown size, or larger than the same tile of `guess`."""
    most = {n.tensor.name: _elements(n) for n in _tiles(guess)}
    return all(not sizes_in(n) and _elements(n) <= most.get(n.tensor.name, 0) for n in _tiles(kernel))


def _applicable_steps(program: Program, guess: Program, wanted: Schedule) -> Iterator[Step]:
    """The steps that apply to the kernel of `program` as to that of `guess`."""
    kernel, other = program.kernels[0], guess.kernels[0]
    for step in wanted.steps:
        guess, other = apply_step(guess, other, step)
        try:
            changed, new = apply_step(program, kernel, step)
        except (ScheduleError, SymbolicError):
            continue
        if _has_no_larger_tiles(new, other):
            program, kernel = changed, new
            yield step


def _tiles(kernel: Kernel) -> Iterator[tile.Alloc]:
    return within(kernel.body, tile.Alloc)


def _elements(a: tile.Alloc) -> int:
    return math.prod(int(n.value) for n in a.tensor.shape if isinstance(n, Const))
