"""Check that the target can run a scheduled kernel; raise ScheduleError for the step at fault otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from compiler.analysis.copies import copies, prefetch_problem, rounds_problem, width_problem
from compiler.analysis.remainders import again_problem
from compiler.analysis.vectors import jam_problem, scalars, vector_problem
from compiler.ir import tile
from compiler.ir.launches import block_size
from compiler.ir.statement import Kernel, within
from compiler.passes.tile.instruction_options import instructions_with_columns
from compiler.passes.tile.nests import fill_width_of, loops_in, ranges_of
from compiler.schedule.steps import (
    Bind,
    CacheHints,
    Checks,
    Multicast,
    Pack,
    Schedule,
    ScheduleError,
    Step,
    StoreSums,
    Tensorize,
    names_made,
)
from compiler.targets import legal
from compiler.targets.legal import IllegalProgram, Problem
from compiler.targets.target import Target, instruction

CHECKS, STORE_SUMS = "checks", "store_sums"  # the subjects of these steps


def check(kernel: Kernel, schedule: Schedule, target: Target) -> None:
    """Raise ScheduleError for the first binding, tile, copy or instruction that the target does not have.

    Raises IllegalProgram instead if no step of the schedule made it, but the kernel's text had it already.
    """
    if target.kind == "triton":
        return  # unsupported constructs are refused when its text is written
    on_cpu = chain(_loop_problems(kernel), _option_problems(kernel, schedule, target))
    on_gpu = chain(legal.problems(kernel, target), _copy_problems(kernel), _check_problems(kernel))
    problems = on_cpu if target.kind == "cpu" else on_gpu
    for problem in problems:
        step = next((s for s in reversed(schedule.steps) if problem.subjects & _subjects(s)), None)
        if step is None:
            raise IllegalProgram(f"{target.name}: kernel {kernel.name}: {problem.reason}")
        raise ScheduleError(step, f"{target.name} cannot do this: {problem.reason}")


def _subjects(step: Step) -> set[str]:
    """The loops, tiles and instructions that a step concerns."""
    match step:
        case Bind(loop):
            return {loop}
        case CacheHints(loads, stores):
            return {*loads, *stores}
        case Checks():
            return {CHECKS}
        case Multicast(tile_name):
            return {tile_name}
        case StoreSums():
            return {STORE_SUMS}
        case Tensorize(_, instruction):
            return {instruction}
    return set(names_made(step))


def _check_problems(kernel: Kernel) -> Iterator[Problem]:
    """Hoisted data checks, which GPUs do not have: each thread checks for itself."""
    if kernel.checks:
        yield Problem({CHECKS}, "threads check data one iteration at a time, where it is used")


def _copy_problems(kernel: Kernel) -> Iterator[Problem]:
    """Copies that threads cannot make, or not with this width or number of rounds."""
    threads = block_size(kernel.body)
    for s, place in copies(kernel):
        reason = width_problem(s, place) or rounds_problem(s, place, threads, legal.MOST_ROUNDS)
        reason = reason or prefetch_problem(s, place)
        if reason:
            yield Problem({s.target.buffer, s.source.buffer}, reason)


def _loop_problems(kernel: Kernel) -> Iterator[Problem]:
    """Loop bindings and cache hints that a CPU does not support."""
    tensors, types = tile.tensors(kernel), scalars(kernel.body)
    if kernel.once or kernel.past:
        reason = "its loads keep what they load; loops over vectors take past=1 to store past the caches"
        yield Problem({*kernel.once, *kernel.past}, reason)
    for around, f in loops_in(kernel.body):
        level = f.bind.level
        outside = next((x.var for x in around if x.bind.level == level), "") if level in ("blocks", "vector") else ""
        if outside:
            yield Problem({f.var}, f"loop {f.var} stands inside loop {outside}, which runs over {level} already")
        if level not in ("serial", "unroll", "blocks", "vector"):
            yield Problem({f.var}, f"loop {f.var} cannot run over {level}; take serial, unroll, blocks or vector")
        if level == "unroll" and dict(f.bind.args).get("jam") and (reason := jam_problem(f)):
            yield Problem({f.var}, reason)
        if level == "unroll" and dict(f.bind.args).get("ahead"):
            yield Problem(
                {f.var}, f"loop {f.var}: compilers order the loads of a CPU, ahead=1 is for tensor instructions"
            )
        if level == "vector":
            reason = vector_problem(f, f.extent, tensors, ranges_of((*around, f)), types)
            if reason:
                yield Problem({f.var}, reason)


def _option_problems(kernel: Kernel, schedule: Schedule, target: Target) -> Iterator[Problem]:
    """Options of tensor instructions, copies and `pack` that a CPU does not support."""
    for s, columns, ranges in instructions_with_columns(kernel):
        if s.neighbours:
            yield Problem({s.instruction}, f"the threads that would hold neighbours along {s.neighbours} are a GPU's")
        reason = again_problem(columns, instruction(target, s.instruction), ranges) if s.again else ""
        if reason:
            yield Problem({s.instruction}, reason)
        if s.store and (s.sizes or tile.lengths(s)["k"] > (most := instruction(target, s.instruction).stores)):
            known = f"stores sums of at most {most} products, whose number is known" if most else "stores no sums"
            yield Problem({STORE_SUMS, s.instruction}, f"{s.instruction} {known}; it adds others to a tile")
    for copy in within(kernel.body, tile.Copy):
        if copy.width or copy.rounds or copy.prefetch:
            reason = "one thread copies all: there is no width, no rounds and no prefetch"
            yield Problem({copy.target.buffer, copy.source.buffer}, reason)
    for step in schedule.steps:
        if isinstance(step, Pack) and step.width != (fill_width := fill_width_of(kernel, step.tile)):
            how = f"in vectors of {fill_width}" if fill_width > 1 else "by a copy, or element by element"
            yield Problem(
                {step.tile}, f"tile {step.tile} is filled {how}, not in vectors of {step.width}: width={fill_width}"
            )
        if isinstance(step, Pack) and step.again and step.width == 1:
            yield Problem({step.tile}, f"no vectors fill tile {step.tile}, which would leave elements over")
