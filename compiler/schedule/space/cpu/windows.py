"""Depthwise convolutions on a CPU: windows of an image with separate weights per channel.

Matmul instructions gain nothing here, because no two sums share both weights and elements. Vectors run along rows, with
accumulators that stay in registers over the whole window; a channel is copied once, with its margins. If channels are
contiguous, vectors run along channels, and only weights are copied. The vectors of a row, of which the last may overlap
the one before it, and those of several rows run side by side: their sums hide each other's latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from compiler.analysis import access
from compiler.analysis.guarded_factors import block, unwidened
from compiler.analysis.nests import loop_ranges, size
from compiler.analysis.vectors import fitting_width, most_unroll
from compiler.ir import loop
from compiler.ir.expr import Expr, Load, Var, cast, dim, names, static, substitute
from compiler.ir.ranges import Range
from compiler.ir.statement import Kernel
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import value_range
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import Contraction, recognise
from compiler.schedule.cost import cpu as cost
from compiler.schedule.name_suffixes import numbered
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Margin, Peel, Permute, Reorder, Split, Step
from compiler.targets.target import Target

MOST = 8  # vectors of a row with an accumulator each
TOGETHER = {64: 16}  # by bytes of a vector: accumulators of several rows, half of the registers; 8 of others


@dataclass(frozen=True)
class _Way:
    """Vectors of `width`, `unroll` of them side by side, of which the last may overlap, for each of `rows` rows."""

    width: int
    unroll: int
    overlaps: bool = False
    rows: int = 1

    @property
    def binding(self) -> tuple[tuple[str, int], ...]:
        return (("width", self.width), ("unroll", self.unroll), *((("again", 1),) if self.overlaps else ()))


@dataclass(frozen=True)
class _Windows:
    """A depthwise convolution: its contraction, its factors, the image element as multiplied, and that element's load.

    The rows of the result are `channels`, which have their own weights, and `windowed` loops, which move the window.
    """

    kernel: Kernel
    target: Target
    sum: Contraction
    image: Expr
    weight: Expr
    element: Expr
    load: Load
    channels: list[loop.For]
    windowed: list[loop.For]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {p.name: p for p in self.kernel.params}

    @property
    def ranges(self) -> dict[str, Range]:
        return loop_ranges(self.sum.loops)

    @property
    def down(self) -> loop.For | None:
        """The loop over rows of an image; None for windows along one axis."""
        return self.windowed[-2] if len(self.windowed) > 1 else None

    def stride(self, load: Load, row: loop.For) -> int | None:
        return access.stride(access.address(load.index, self.tensors[load.buffer], self.ranges), Var(row.var))

    def members(
        self, row: loop.For, lanes: int, steps: Callable[[_Way], Iterator[Step]], down: loop.For | None = None
    ) -> Iterator[Member]:
        """Schedules with vectors along a row, in all ways; of several rows of `down` if it is given."""
        rows = [f for f in self.sum.rows if f is not row]
        count, taps = float(math.prod(map(size, (*rows, *self.sum.depth)))), math.prod(map(size, self.sum.depth))
        group = partial(cost.window, self.target, taps, self.element.dtype.bytes)
        ways = [
            way
            for width in (lanes, lanes // 2)
            if fitting_width(width, row.extent) == width
            for unroll in range(1, min(MOST, most_unroll(size(row), width, again=True)) + 1)
            for way in self._ways(width, unroll, size(row), down)
        ]
        return ranked(Member(count / w.rows * _vectors(size(row), group, w), partial(steps, w)) for w in ways)

    def _ways(self, width: int, unroll: int, length: int, down: loop.For | None) -> Iterator[_Way]:
        overlaps = width * unroll > length
        yield _Way(width, unroll, overlaps)
        most = TOGETHER.get(self.target.vector, MOST)
        if down is not None and (overlaps or width * unroll == length):
            for rows in range(2, min(size(down), most // unroll) + 1):
                if size(down) % rows == 0:
                    yield _Way(width, unroll, overlaps, rows)


def space(kernel: Kernel, target: Target) -> Iterator[Member] | None:
    """Schedules along rows or, if these do not apply, along contiguous channels; None for other kernels."""
    c = recognise(kernel)
    found = _image(c, kernel) if c is not None else None
    if c is None or found is None:
        return None
    image, weight, element, load = found
    windowed = [f for f in c.rows if any(f.var in names(i) and _moves(i, c.depth) for i in load.index)]
    channels = [f for f in c.rows if f not in windowed]
    apart = channels and windowed and [*channels, *windowed] == list(c.rows)
    if not apart or any(f.var in names(weight) for f in windowed):
        return None
    w = _Windows(kernel, target, c, image, weight, element, load, channels, windowed)
    return _along_rows(w) or _along_channels(w)


def _along_rows(w: _Windows) -> Iterator[Member] | None:
    """Vectors along the last windowed row, from a tile with the margins of a channel; None if not applicable."""
    row, tensors = w.sum.rows[-1], w.tensors
    body = substitute(row.body, {w.image: w.element})
    if (
        row not in w.windowed
        or (w.stride(w.load, row) or 0) < 1
        or access.not_vectorizable(body, Var(row.var), tensors, w.ranges)
    ):
        return None
    lanes = fitting_width(w.target.lanes(access.widest(body, {row.var})), row.extent)
    steady = unwidened(w.weight)
    before = _margin(w, w.element, w.load) if w.image is not w.load else ()
    # Widened weights are reused for each row.
    if before is not None and isinstance(steady, Load) and steady is not w.weight and steady.buffer != w.load.buffer:
        more = _margin(w, w.weight, steady)
        before = None if more is None else (*before, *more)
    if lanes == 1 or before is None:
        return None
    return w.members(row, lanes, partial(_row_steps, w, row, before), w.down)


def _along_channels(w: _Windows) -> Iterator[Member] | None:
    """Vectors along contiguous channels, whose guards are the same in all lanes; None if not applicable.

    Weights are permuted first if they are not contiguous along channels.
    """
    lane, steady = w.channels[-1], unwidened(w.weight)
    body = w.sum.rows[-1].body
    if (
        not isinstance(steady, Load)
        or w.stride(w.load, lane) != 1
        or access.not_vectorizable(body, Var(lane.var), w.tensors, w.ranges)
    ):
        return None
    lanes = fitting_width(w.target.lanes(access.widest(body, {lane.var})), lane.extent)
    own = [d for d, i in enumerate(steady.index) if lane.var in names(i)]
    if lanes == 1 or steady.buffer == w.load.buffer or [steady.index[d] for d in own] != [Var(lane.var)]:
        return None
    before: tuple[Step, ...] = ()
    if w.stride(steady, lane) != 1:
        order = (*(d for d in range(len(steady.index)) if d not in own), *own)
        tile = f"{steady.buffer}_permuted"
        before = (Permute(steady.buffer, tile, order, numbered(f"{steady.buffer}_at", len(order))),)
    return w.members(lane, lanes, partial(_channel_steps, w, before))


def _image(c: Contraction, kernel: Kernel) -> tuple[Expr, Expr, Expr, Load] | None:
    """The factor that moves with the rows (the image), the weight, the image element without guard, and its load.

    The load may be of a narrower float than the element. None if there are no such factors.
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


def _margin(w: _Windows, element: Expr, load: Load) -> tuple[Step, ...] | None:
    """Steps that copy a channel with its margins into a tile, widened to the type that is multiplied; None if the tile
    is too large for the near caches."""
    inside = [*w.windowed, *w.sum.depth]
    ranges = loop_ranges(inside)
    moving = [(i, d) for d, i in enumerate(load.index) if any(f.var in names(i) and size(f) > 1 for f in inside)]
    spans = [value_range(i, ranges) for i, _ in moving]
    if not moving:
        return ()
    ends = [(low, high) for low, high in spans if low is not None and high is not None]
    counts = [high - low + 1 for low, high in ends]
    if len(ends) < len(moving) or math.prod(counts) * element.dtype.bytes > w.target.l2 // 2:
        return None
    tile = f"{load.buffer}_tile"
    loops = tuple(f"{tile}_at{n}" for n in range(len(moving)))
    name = "".join(f.var for f in w.channels)
    steps: list[Step] = [Margin(load.buffer, tile, name, loops)]
    (low, high), extent = ends[-1], static(w.tensors[load.buffer].shape[moving[-1][1]])
    if low < 0 or high >= extent:
        steps.append(Peel(loops[-1], (f"{loops[-1]}_low", f"{loops[-1]}_high")))
    there = min(high, extent - 1) - max(low, 0) + 1
    if (width := fitting_width(w.target.lanes(element.dtype.bytes), dim(there))) > 1:
        steps.append(Bind(loops[-1], "vector", (("width", width), ("unroll", 1))))
    return tuple(steps)


def _vectors(length: int, group: Callable[[int, int], float], way: _Way) -> float:
    """Cycles of one element of the window for rows of `length`: full groups of vectors, and the rest."""
    if way.overlaps:
        return group(way.width, way.unroll * way.rows)
    together, rest = divmod(length // way.width, way.unroll)
    left_over = rest + (length % way.width > 0)
    return together * group(way.width, way.unroll * way.rows) + left_over * group(way.width, way.rows)


def _row_steps(w: _Windows, row: loop.For, before: tuple[Step, ...], way: _Way) -> Iterator[Step]:
    steps: list[Step] = []
    name = naming.collapse([f.var for f in w.channels], steps)
    yield from (*steps, *before, Bind(name, "blocks"))
    if way.rows > 1 and w.down is not None:
        outer, inner = naming.pieces(w.down.var)
        yield from (Split(w.down.var, way.rows, (outer, inner)), Reorder((row.var, inner)))
        yield Bind(inner, "unroll", (("jam", 1),))
    yield Bind(row.var, "vector", way.binding)


def _channel_steps(w: _Windows, before: tuple[Step, ...], way: _Way) -> Iterator[Step]:
    *outer, lane = (f.var for f in w.channels)
    rows = [f.var for f in w.windowed]
    steps: list[Step] = [*before, Reorder((*outer, *rows, lane))]
    name = naming.collapse([*outer, rows[0]], steps)
    yield from (*steps, Bind(name, "blocks"))
    yield Bind(lane, "vector", way.binding)
