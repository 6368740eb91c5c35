"""Weighted windows of an image on a CPU, each with weights of its own channel: a depthwise convolution.

Instructions for matmuls gain nothing by such sums, no two of which share weights and elements. Rows go along vectors,
in accumulators that stay in registers over the whole window; a channel is copied once, with its margins, not packed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from compiler.analysis import access
from compiler.analysis.guarded_factors import block
from compiler.analysis.vectors import fitting_width
from compiler.ir import loop
from compiler.ir.expr import Expr, Load, Select, Var, dim, names, static, substitute
from compiler.ir.index import extent_range, value_range
from compiler.ir.statement import Kernel
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import Contraction, recognise, size
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Margin, Peel, Step
from compiler.targets.target import Target

MOST = 8  # vectors with an accumulator each
# A vector by itself waits for its sum: it takes as long as so many that go together (measured on an AVX-512 machine).
ALONE = 1.2


def space(kernel: Kernel, target: Target) -> Iterator[Member] | None:
    """Ways to take the rows; None where a kernel is nothing of the kind."""
    c = recognise(kernel)
    found = _image(c, kernel) if c is not None else None
    if c is None or found is None:
        return None
    image, weight, load = found
    windowed = [f for f in c.rows if any(f.var in names(i) and _moves(i, c.depth) for i in load.index)]
    channels = [f for f in c.rows if f not in windowed]
    row, tensors = c.rows[-1], {p.name: p for p in kernel.params}
    ranges = {f.var: extent_range(f.extent) for f in (*c.rows, *c.depth)}
    place = access.address(load.index, tensors[load.buffer], ranges)
    body = substitute(row.body, {image: load})
    if (
        not channels
        or [*channels, *windowed] != list(c.rows)
        or row not in windowed
        or any(f.var in names(weight) for f in windowed)
        or access.stride(place, Var(row.var)) != 1
        or access.not_vectorizable(body, Var(row.var), tensors, ranges)
    ):
        return None
    lanes = fitting_width(target.lanes(access.widest(body, {row.var})), row.extent)
    before = _margin(load, channels, [*windowed, *c.depth], kernel, target) if image is not load else ()
    if lanes == 1 or before is None:
        return None
    count = float(math.prod(map(size, (*c.rows[:-1], *c.depth))))
    ways = [(width, unroll) for width in (lanes, lanes // 2) for unroll in range(1, MOST + 1)]
    ways = [(w, u) for w, u in ways if fitting_width(w, row.extent) == w and w * u <= size(row)]
    return ranked(
        Member(count * _vectors(size(row), *way), partial(_steps, channels, row, before, *way)) for way in ways
    )


def _image(c: Contraction, kernel: Kernel) -> tuple[Expr, Expr, Load] | None:
    """The factor that moves with the rows, an element or zero beyond the edges; the other has no rows of its own."""
    rows = {f.var for f in c.rows}
    shapes = {p.name: p.shape for p in kernel.params}
    for image, weight in ((c.left, c.right), (c.right, c.left)):
        if c.rows[-1].var in names(image) and names(weight) & rows < names(image) & rows:
            load = block(image, shapes) if isinstance(image, Load | Select) else None
            return (image, weight, load) if load is not None and load.dtype is c.first.value.dtype else None
    return None


def _moves(index: Expr, depth: tuple[loop.For, ...]) -> bool:
    return any(f.var in names(index) for f in depth)


def _margin(
    load: Load, channels: list[loop.For], inside: list[loop.For], kernel: Kernel, target: Target
) -> tuple[Step, ...] | None:
    """Steps that make a tile of a channel and its margins; None where that is too large for the near caches."""
    ranges = {f.var: extent_range(f.extent) for f in inside}
    moving = [(i, d) for d, i in enumerate(load.index) if any(f.var in names(i) and size(f) > 1 for f in inside)]
    spans = [value_range(i, ranges) for i, _ in moving]
    ends = [(low, high) for low, high in spans if low is not None and high is not None]
    counts = [high - low + 1 for low, high in ends]
    if len(ends) < len(moving) or math.prod(counts) * load.dtype.bytes > target.l2 // 2:
        return None
    tile = f"{load.buffer}_tile"
    loops = tuple(f"{tile}_at{n}" for n in range(len(moving)))
    name = "".join(f.var for f in channels)
    steps: list[Step] = [Margin(load.buffer, tile, name, loops)]
    (low, high), extent = ends[-1], static(next(p.shape for p in kernel.params if p.name == load.buffer)[moving[-1][1]])
    if low < 0 or high >= extent:
        steps.append(Peel(loops[-1], (f"{loops[-1]}_low", f"{loops[-1]}_high")))
    there = min(high, extent - 1) - max(low, 0) + 1
    if (width := fitting_width(target.lanes(load.dtype.bytes), dim(there))) > 1:
        steps.append(Bind(loops[-1], "vector", (("width", width), ("unroll", 1))))
    return tuple(steps)


def _vectors(length: int, width: int, unroll: int) -> float:
    """The time of a row, in vectors that go together."""
    together, rest = divmod(length // width, unroll)
    return together * (unroll + ALONE - 1) + ALONE * (rest + (length % width > 0))


def _steps(
    channels: list[loop.For], row: loop.For, before: tuple[Step, ...], width: int, unroll: int
) -> Iterator[Step]:
    steps: list[Step] = []
    name = naming.collapse([f.var for f in channels], steps)
    yield from (*steps, *before, Bind(name, "blocks"))
    yield Bind(row.var, "vector", (("width", width), ("unroll", unroll)))
