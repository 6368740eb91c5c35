"""Complete the schedule of a kernel for a GPU.

Added are widths of copies, rounds of loops that are unrolled at a time, axes along which registers hold neighbours, and
cache hints.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from compiler.ir import tile
from compiler.ir.expr import Const, Load, loads
from compiler.ir.ranges import Range
from compiler.ir.statement import If, Kernel, Program, Stmt
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import value_range
from compiler.passes.gpu.assign_stages import assign_stages
from compiler.passes.gpu.fragment_prefetch import with_prefetch
from compiler.passes.gpu.launches import launches
from compiler.passes.gpu.layouts import axes_in_memory, layouts
from compiler.passes.gpu.thread_maps import with_rounds
from compiler.passes.gpu.vectorize import with_widths
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.instruction_options import matmuls, operands, with_options
from compiler.passes.tile.schedule import neighbours
from compiler.passes.tile.steps import apply
from compiler.schedule.steps import CacheHints, Schedule
from compiler.targets.target import Target


def completed(program: Program, kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """Complete the schedule of a kernel of a Loop IR program. Raises ScheduleError for a step that does not apply."""
    tile_program = loop_to_tile(neighbours(program, kernel))
    made = apply(tile_program, tile_program.kernels[0], schedule)
    scheduled = made.kernels[0]
    launched = launches(made.replace(kernels=(scheduled,)))
    parts = [(buffers_read_once(part), part) for part in launched.kernels]
    read = tuple(
        p.name for p in scheduled.params
        if p.name not in scheduled.writes and all(p.name in once for once, part in parts if p in part.params)
    )  # fmt: skip
    streamed = streamed_outputs(program, scheduled, target)
    hints = (CacheHints(read, streamed),) if read or streamed else ()
    try:
        laid_out = layouts(assign_stages(launched), target).kernels
    except ValueError:  # an illegal schedule: whoever lowers the kernel gets the error
        laid_out = ()
    extended = with_prefetch(with_rounds(with_widths(schedule, launched.kernels), laid_out, target), laid_out)
    options = {
        operands(s): {"neighbours": axes}
        for part in launched.kernels
        if (axes := axes_in_memory(part, target))
        for s in matmuls(part)
    }
    return with_options(tile_program, tile_program.kernels[0], extended, options) + Schedule(hints)


def buffers_read_once(kernel: Kernel) -> tuple[str, ...]:
    """Buffers that the kernel only reads, each element at most once as far as the number of loads tells."""
    counts: Counter[str] = Counter()
    _count_loads(kernel.body, 1, {}, counts)
    copied = {n.buffer for s in kernel.body for n in s.walk() if isinstance(n, tile.Slice)}
    known = {p.name: p for p in kernel.params}
    # Iterations of padded loops count as well.
    return tuple(
        b for b, t in known.items()
        if 0 < counts[b] < 2 * _elements(t) and b not in kernel.writes and b not in copied
    )  # fmt: skip


def _count_loads(body: Iterable[Stmt], times: int, ranges: Mapping[str, Range], counts: Counter[str]) -> None:
    for s in body:
        match s:
            case tile.For(var, extent, _, _, inner):
                most = value_range(extent, ranges)[1]
                _add_loads(loads(extent), times, counts)
                _count_loads(inner, times * (1 << 40 if most is None else most), {**ranges, var: (0, None)}, counts)
            case tile.Stage(_, inner):
                _count_loads(inner, times, ranges, counts)
            case If(cond, inner):
                _add_loads(loads(cond), times, counts)
                _count_loads(inner, times, ranges, counts)
            case _:
                _add_loads(loads(s), times, counts)


def _add_loads(found: Iterable[Load], times: int, counts: Counter[str]) -> None:
    for load in found:
        counts[load.buffer] += times


def _elements(t: Tensor) -> int:
    return math.prod(int(n.value) if isinstance(n, Const) else 0 for n in t.shape)


def streamed_outputs(program: Program, kernel: Kernel, target: Target) -> tuple[str, ...]:
    """Outputs too large for the L2 cache to hold until they are read."""
    results = {t.name for t in program.outputs}
    return tuple(
        p.name for p in kernel.params
        if p.name in results and p.name in kernel.writes and _elements(p) * p.dtype.bytes > target.l2
    )  # fmt: skip
