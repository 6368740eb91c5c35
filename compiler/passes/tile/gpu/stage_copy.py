"""The schedule step `stage` with a copy: contiguous axes become one axis of the tile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.ir import tile
from compiler.ir.expr import Expr, Load, const, dim, static
from compiler.ir.linear import from_linear, linear
from compiler.ir.tensor import Tensor
from compiler.passes.tile.nests import padded_strides
from compiler.schedule.steps import ScheduleError, Stage

Axis = tuple[Expr | None, Expr]  # the length in use of an axis, None for one place, and its start


def stage_by_copy(
    step: Stage, buffer: Tensor, axes: Sequence[Axis], uses: Sequence[Load]
) -> tuple[tuple[tile.Alloc, tile.Copy], dict[object, object]]:
    """`stage("q", "held", "l0", "shared", 0, "cp.async")`

    before:
        for i in serial(4):
            c[i] = 0.0
            for l0 in serial(2):
                for l in serial(64, reduce):
                    c[i] += a[i, l0 * 64 + l] * f32(q[i, l0 * 2 + l // 32, l % 32])
    after:
        for i in serial(4):
            c[i] = 0.0
            for l0 in serial(2):
                held = shared(bf16[64])
                copy(held[0: +64], q[i, l0 * 2: +2, 0: +32], "cp.async")
                for l in serial(64, reduce):
                    c[i] += a[i, l0 * 64 + l] * f32(held[l // 32 * 32 + l % 32])

    Returns the tile with its copy, and the replacement of each load in `uses`.
    """
    lengths = [0 if extent is None else static(extent) for extent, _ in axes]
    groups: list[list[int]] = []
    for d in (d for d, n in enumerate(lengths) if n):
        whole = lengths[d] == static(buffer.shape[d]) and axes[d][1] is const(0)
        if groups and groups[-1][-1] == d - 1 and whole and _are_contiguous(buffer, d) and not step.turned:
            groups[-1].append(d)
        else:
            groups.append([d])
    if not groups:
        raise ScheduleError(step, f"one element of {buffer.name} is no tile")
    shape = tuple(dim(math.prod(lengths[d] for d in g)) for g in groups)
    strides = padded_strides(shape[::-1], step.pad)[::-1] if step.turned else padded_strides(shape, step.pad)
    held = Tensor(step.tile, buffer.dtype, shape, strides)
    whole_tile = tile.Slice(held.name, (const(0),) * len(shape), tuple(map(static, shape)))
    source = tile.Slice(buffer.name, tuple(start for _, start in axes), tuple(lengths))

    def moved(load: Load) -> Load:
        local = [from_linear(linear(i - start)) for i, (_, start) in zip(load.index, axes, strict=True)]
        index = tuple(_merged_index(local, lengths, g) for g in groups)
        return load.replace(buffer=held.name, index=index)

    made = (
        tile.Alloc(held, step.space, step.swizzle),
        tile.Copy(whole_tile, source, step.how, None, step.width, step.rounds, step.prefetch),
    )
    return made, {load: moved(load) for load in uses}


def _are_contiguous(buffer: Tensor, d: int) -> bool:
    """Whether axes d - 1 and d are contiguous."""
    return static(buffer.strides[d - 1]) == static(buffer.strides[d]) * static(buffer.shape[d])


def _merged_index(local: Sequence[Expr], lengths: Sequence[int], group: Sequence[int]) -> Expr:
    """The index along the merged axis of a group."""
    out: Expr = const(0)
    for d in group:
        out = out * lengths[d] + local[d]
    return out
