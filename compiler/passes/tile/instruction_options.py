"""Add options to the steps of a schedule that make tensor instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from compiler.ir import tile
from compiler.ir.expr import Expr, const
from compiler.ir.ranges import Range
from compiler.ir.statement import Kernel, Program, within
from compiler.passes.tile.nests import loops_in, ranges_of
from compiler.passes.tile.steps import apply_step
from compiler.schedule.steps import Schedule, Step, Tensorize

Operands = tuple[str, str, str]  # the buffers of an instruction's accumulator and factors


def operands(s: tile.Mma) -> Operands:
    """The identity of a tensor instruction, from the step that makes it to the end of the schedule."""
    return s.acc.buffer, s.a.buffer, s.b.buffer


def matmuls(kernel: Kernel) -> list[tile.Mma]:
    """The tensor instructions of a kernel."""
    return list(within(kernel.body, tile.Mma))


def instructions_with_columns(kernel: Kernel) -> Iterator[tuple[tile.Mma, Expr, dict[str, Range]]]:
    """Each tensor instruction of a kernel, with its number of columns and the ranges of variables there."""
    for around, f in loops_in(kernel.body):
        yield from ((s, _columns(s), ranges_of((*around, f))) for s in f.body if isinstance(s, tile.Mma))
    yield from ((s, _columns(s), {}) for s in kernel.body if isinstance(s, tile.Mma))


def _columns(s: tile.Mma) -> Expr:
    return s.sizes[1] if s.sizes else const(tile.lengths(s)["n"])


def with_options(
    program: Program, kernel: Kernel, schedule: Schedule, options: Mapping[Operands, Mapping[str, Any]]
) -> Schedule:
    """The schedule with these options of tensor instructions, where its steps do not set them."""
    if not any(options.values()):
        return schedule
    steps: list[Step] = []
    for step in schedule.steps:
        before = kernel
        program, kernel = apply_step(program, kernel, step)
        if isinstance(step, Tensorize):
            instruction = next((s for s in matmuls(kernel) if s not in matmuls(before)), None)
            added = options.get(operands(instruction), {}) if instruction is not None else {}
            step = step.replace(**{field: value for field, value in added.items() if not getattr(step, field)})
        steps.append(step)
    return Schedule(tuple(steps))
