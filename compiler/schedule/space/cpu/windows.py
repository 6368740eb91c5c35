"""Weighted windows of an image on a CPU, each with weights of its own channel: a depthwise convolution.

Instructions for matmuls gain nothing by such sums, no two of which share weights and elements. Rows go along vectors,
in accumulators that stay in registers over the whole window; a channel is copied once, with its margins, not packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from compiler.analysis import access
from compiler.analysis.guarded_factors import block, unwidened
from compiler.analysis.vectors import fitting_width
from compiler.ir import loop
from compiler.ir.expr import Expr, Load, Var, cast, dim, names, static, substitute
from compiler.ir.index import extent_range, value_range
from compiler.ir.statement import Kernel
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import Contraction, recognise, size
from compiler.schedule.cost import cpu as cost
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Margin, Peel, Step
from compiler.targets.target import Target

MOST = 8  # vectors with an accumulator each


def space(kernel: Kernel, target: Target) -> Iterator[Member] | None:
    """Ways to take the rows; None where a kernel is nothing of the kind."""
    c = recognise(kernel)
    found = _image(c, kernel) if c is not None else None
    if c is None or found is None:
        return None
    image, weight, element, load = found
    windowed = [f for f in c.rows if any(f.var in names(i) and _moves(i, c.depth) for i in load.index)]
    channels = [f for f in c.rows if f not in windowed]
    row, tensors = c.rows[-1], {p.name: p for p in kernel.params}
    ranges = {f.var: extent_range(f.extent) for f in (*c.rows, *c.depth)}
    place = access.address(load.index, tensors[load.buffer], ranges)
    body = substitute(row.body, {image: element})
    if (
        not channels
        or [*channels, *windowed] != list(c.rows)
        or row not in windowed
        or any(f.var in names(weight) for f in windowed)
        or (access.stride(place, Var(row.var)) or 0) < 1
        or access.not_vectorizable(body, Var(row.var), tensors, ranges)
    ):
        return None
    lanes = fitting_width(target.lanes(access.widest(body, {row.var})), row.extent)
    inside, steady = [*windowed, *c.depth], unwidened(weight)
    before = _margin(element, load, channels, inside, kernel, target) if image is not load else ()
    # Weights that are widened are used again for each row.
    if before is not None and isinstance(steady, Load) and steady is not weight and steady.buffer != load.buffer:
        more = _margin(weight, steady, channels, inside, kernel, target)
        before = None if more is None else (*before, *more)
    if lanes == 1 or before is None:
        return None
    count, taps = float(math.prod(map(size, (*c.rows[:-1], *c.depth)))), math.prod(map(size, c.depth))
    ways = [(width, unroll) for width in (lanes, lanes // 2) for unroll in range(1, MOST + 1)]
    ways = [(w, u) for w, u in ways if fitting_width(w, row.extent) == w and w * u <= size(row)]
    group = partial(cost.window, target, taps, element.dtype.bytes)
    return ranked(
        Member(count * _vectors(size(row), group, *way), partial(_steps, channels, row, before, *way)) for way in ways
    )


def _image(c: Contraction, kernel: Kernel) -> tuple[Expr, Expr, Expr, Load] | None:
    """The factor that moves with the rows, an element or zero beyond the edges; the other has no rows of its own.

    Then the element as it is multiplied, where it is no zero, and the load of it, which may be a short float.
    """
    rows = {f.var for f in c.rows}
    shapes = {p.name: p.shape for p in kernel.params}
    for image, weight in ((c.left, c.right), (c.right, c.left)):
        if c.rows[-1].var in names(image) and names(weight) & rows < names(image) & rows:
            load = block(unwidened(image), shapes)
            return None if load is None else (image, weight, cast(load, image.dtype), load)
    return None


def _moves(index: Expr, depth: tuple[loop.For, ...]) -> bool:
    return any(f.var in names(index) for f in depth)


def _margin(
    element: Expr, load: Load, channels: list[loop.For], inside: list[loop.For], kernel: Kernel, target: Target
) -> tuple[Step, ...] | None:
    """Steps that make a tile of what is loaded of a channel and its margins; None where that is too large for the near
    caches. Its elements are those that are multiplied, no short floats."""
    ranges = {f.var: extent_range(f.extent) for f in inside}
    moving = [(i, d) for d, i in enumerate(load.index) if any(f.var in names(i) and size(f) > 1 for f in inside)]
    spans = [value_range(i, ranges) for i, _ in moving]
    if not moving:
        return ()
    ends = [(low, high) for low, high in spans if low is not None and high is not None]
    counts = [high - low + 1 for low, high in ends]
    if len(ends) < len(moving) or math.prod(counts) * element.dtype.bytes > target.l2 // 2:
        return None
    tile = f"{load.buffer}_tile"
    loops = tuple(f"{tile}_at{n}" for n in range(len(moving)))
    name = "".join(f.var for f in channels)
    steps: list[Step] = [Margin(load.buffer, tile, name, loops)]
    (low, high), extent = ends[-1], static(next(p.shape for p in kernel.params if p.name == load.buffer)[moving[-1][1]])
    if low < 0 or high >= extent:
        steps.append(Peel(loops[-1], (f"{loops[-1]}_low", f"{loops[-1]}_high")))
    there = min(high, extent - 1) - max(low, 0) + 1
    if (width := fitting_width(target.lanes(element.dtype.bytes), dim(there))) > 1:
        steps.append(Bind(loops[-1], "vector", (("width", width), ("unroll", 1))))
    return tuple(steps)


def _vectors(length: int, group: Callable[[int, int], float], width: int, unroll: int) -> float:
    """Cycles of an element of the window in a row: of groups of vectors, and of those that are left over."""
    together, rest = divmod(length // width, unroll)
    return together * group(width, unroll) + (rest + (length % width > 0)) * group(width, 1)


def _steps(
    channels: list[loop.For], row: loop.For, before: tuple[Step, ...], width: int, unroll: int
) -> Iterator[Step]:
    steps: list[Step] = []
    name = naming.collapse([f.var for f in channels], steps)
    yield from (*steps, *before, Bind(name, "blocks"))
    yield Bind(row.var, "vector", (("width", width), ("unroll", unroll)))
