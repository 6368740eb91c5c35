"""Complete the schedule of a kernel for a CPU.

Added are how tiles are filled and padded, which remainders are computed by overlapping vectors and columns, partial
sums for long sums, and where data are checked ahead of their use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compiler.analysis import vectors
from compiler.analysis.long_sums import long_sums
from compiler.analysis.nests import has_checks
from compiler.analysis.remainders import again_problem, remainder
from compiler.ir import tile
from compiler.ir.expr import const, fresh, static
from compiler.ir.statement import Accum, Kernel, Program, within
from compiler.ir.value_ranges import value_range
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.instruction_options import Operands, instructions_with_columns, operands, with_options
from compiler.passes.tile.nests import fill_width_of, loops_in, ranges_of, vector_loops_filling
from compiler.passes.tile.schedule import neighbours
from compiler.passes.tile.steps import apply, bound_names
from compiler.schedule.steps import Bind, Checks, Pack, PartialSums, Schedule, Step, Tensorize
from compiler.targets.target import Target, instruction

SELDOM = 32  # at most one column in this many may be computed twice to save an instance of the code
# Few iterations are not worth a loop of checks ahead of them. Smaller pieces cost more; larger ones are checked long
# before their use; next to a longer inner loop, a check costs little.
CHECKS = Checks(ahead=8, scalars=32, within=2, vectors=4)
LINE = 64  # bytes
SET_CONFLICT_STRIDE = 8 * LINE  # rows a multiple of this apart map to an eighth of a cache's sets, or fewer


def completed(program: Program, kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """Return the completed schedule of a kernel of a Loop IR program.

    Remainders of column blocks and vectors are computed by an overlapping block or vector where that is correct and
    cheap. Raises ScheduleError for a step that does not apply.
    """
    is_given = any(isinstance(s, Checks) for s in schedule.steps)
    checks = Schedule((CHECKS,) if has_checks(kernel) and not is_given else ())
    summed = any(isinstance(s, Accum) for s in within(kernel.body))
    if not summed and not any(isinstance(s, Pack | Tensorize | Bind) for s in schedule.steps):
        return schedule + checks
    tile_program = loop_to_tile(neighbours(program, kernel))
    scheduled = apply(tile_program, tile_program.kernels[0], schedule).kernels[0]
    overlapping = _overlapping_vector_loops(scheduled)

    def complete_step(step: Step) -> Step:
        match step:
            case Pack():
                return _complete_pack(step, scheduled, overlapping)
            case Bind(loop, "vector", args) if loop in overlapping and "again" not in dict(args):
                return step.replace(args=(*args, ("again", 1)))
        return step

    made = Schedule(tuple(map(complete_step, schedule.steps)))
    made = with_options(tile_program, tile_program.kernels[0], made, _overlapping_blocks(scheduled, target))
    return made + Schedule(tuple(_partial_sums(scheduled))) + checks


def _partial_sums(scheduled: Kernel) -> Iterator[PartialSums]:
    """Steps that split long sums into partial sums."""
    taken = set(bound_names(scheduled))
    for long in long_sums(scheduled.body):
        piece = fresh(f"{long.loop.var}_piece", taken)
        yield PartialSums(
            long.loop.var, long.length, piece, tuple(fresh(f"{s.name}_partial", taken) for s in long.scalars)
        )


def _overlapping_vector_loops(scheduled: Kernel) -> set[str]:
    """Loops whose remainder may be an overlapping last vector: one vector costs less than scalar iterations."""
    types = vectors.scalars(scheduled.body)
    return {
        f.var for around, f in loops_in(scheduled.body)
        if f.bind.level == "vector" and not vectors.again_problem(f, f.extent, types, ranges_of((*around, f)))
    }  # fmt: skip


def _complete_pack(step: Pack, scheduled: Kernel, overlapping: set[str]) -> Pack:
    """The step with the vector width that its loops allow, and rows padded by a line if they share few cache sets."""
    tile_tensor = tile.tensors(scheduled)[step.tile]
    row = min(
        (static(n) for n, by in zip(tile_tensor.shape, tile_tensor.strides, strict=True) if by is const(1)), default=1
    )
    shared = len(tile_tensor.shape) > 1 and row * tile_tensor.dtype.bytes % SET_CONFLICT_STRIDE == 0
    pad = LINE // tile_tensor.dtype.bytes if shared else 0
    overlaps = any(f.var in overlapping for _, f in vector_loops_filling(scheduled, step.tile))
    return step.replace(width=fill_width_of(scheduled, step.tile), pad=step.pad or pad, again=step.again or overlaps)


def _overlapping_blocks(scheduled: Kernel, target: Target) -> dict[Operands, dict[str, Any]]:
    """The option `again` for tensorized sums along vectors, where an overlapping last block recomputes few columns."""
    options: dict[Operands, dict[str, Any]] = {}
    for s, columns, ranges in instructions_with_columns(scheduled):
        row = instruction(target, s.instruction)
        recomputed = row.n - remainder(columns, row.n)
        is_cheap = recomputed <= row.n and recomputed * SELDOM <= (value_range(columns, ranges)[0] or 0)
        if is_cheap and not again_problem(columns, row, ranges):
            options[operands(s)] = {"again": True}
    return options
