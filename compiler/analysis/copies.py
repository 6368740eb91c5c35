"""A copy by the threads of a block in; how many neighbours they move at once, and where it may leave a buffer, out.

Schedules are made by these rules and held to them: whoever asks for a width asks them, and no pass makes it narrower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, Var, both, const, op, static
from compiler.ir.index import range_below, simplify, value_range
from compiler.ir.multiples import divides
from compiler.ir.ranges import Range
from compiler.ir.roles import One, Role
from compiler.ir.statement import If, Kernel, Let, Stmt, within
from compiler.ir.tensor import Tensor

WIDEST = 16  # bytes of one access
WORD = 4  # bytes of a register
PIECES = (16, 8, 4)  # bytes of an asynchronous one
LINE = 128  # bytes that the second-level cache is asked for with a piece
BY_THREADS = ("plain", "cp.async")


@dataclass(frozen=True)
class Place:
    """What is known where a copy stands: of buffers, of tiles among these, and of the variables of loops."""

    buffers: Mapping[str, Tensor]
    tiles: Mapping[str, tile.Alloc]
    ranges: Mapping[str, Range]

    def shared(self, buffer: str) -> bool:
        """A tile in the memory of a block."""
        return buffer in self.tiles and self.tiles[buffer].space in ("shared", "cluster")

    def by_threads(self, s: tile.Copy) -> bool:
        """Neither the copy engine makes it, nor do tensor instructions take what it brings to registers."""
        held = self.tiles.get(s.target.buffer)
        return s.how in BY_THREADS and (held is None or held.space != "registers")


def copies(kernel: Kernel) -> Iterator[tuple[tile.Copy, Place]]:
    """The copies of a kernel that threads make."""
    found: list[tuple[tile.Copy, Place]] = []

    def note(s: tile.Copy, place: Place) -> tile.Copy:
        found.append((s, place))
        return s

    changed(kernel, note)
    yield from found


def changed(kernel: Kernel, change: Callable[[tile.Copy, Place], tile.Copy]) -> Kernel:
    """A kernel with its copies by threads changed."""

    def walk(body: tuple[Stmt, ...], place: Place) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            match s:
                case tile.Copy() if place.by_threads(s):
                    s = change(s, place)
                case tile.For(var, extent):
                    inner = replace(place, ranges={**place.ranges, var: range_below(extent, place.ranges)})
                    s = s.replace(body=walk(s.body, inner))
                case If() | tile.Stage() | Role() | One():
                    s = s.replace(body=walk(s.body, place))
                case tile.Alloc(tensor):
                    buffers, tiles = {**place.buffers, tensor.name: tensor}, {**place.tiles, tensor.name: s}
                    place = replace(place, buffers=buffers, tiles=tiles)
                case Let(name, value) if value.dtype is i64:
                    place = replace(place, ranges={**place.ranges, name: value_range(value, place.ranges)})
            out.append(s)
        return tuple(out)

    if not any(within(kernel.body, tile.Copy)):
        return kernel
    return kernel.replace(body=walk(kernel.body, Place({p.name: p for p in kernel.params}, {}, {})))


# ---- widths


def widest(s: tile.Copy, place: Place) -> int:
    """Elements that a thread can move at once: a power of two that divides rows, at whose multiples both sides begin.

    A plain copy's rows also end where such a piece does; an asynchronous one brings what is left of a row.
    """
    lengths = [x[-1] for x in (tile.extents(s.target), tile.extents(s.source)) if x]
    sides = (s.target, s.source)

    def fits(width: int) -> bool:
        ends = s.how == "cp.async" or all(_ends(x, place, width) for x in sides)
        return ends and math.gcd(*lengths) % width == 0 and all(_begins(x, place, width) for x in sides)

    width = max(1, WIDEST // _bytes(s, place))
    while width > 1 and not fits(width):
        width //= 2
    return width


def width_problem(s: tile.Copy, place: Place) -> str:
    """Why threads cannot make a copy as wide as it says, and what would do; empty when they can."""
    most, size = widest(s, place), _bytes(s, place)
    between = f"copies of {s.source.buffer} to {s.target.buffer}"
    if s.how == "cp.async" and most * size < PIECES[-1]:
        return (
            f"{between} cannot be asynchronous, they are known to begin at multiples of {most * size} bytes only, and "
            f'cp.async moves {PIECES[-1]}, 8 or 16: copy how="plain", width={most}'
        )
    least = -(-PIECES[-1] // size) if s.how == "cp.async" else 1
    if s.width and (s.width & (s.width - 1) or not least <= s.width <= most):
        nearest = min(max(1 << s.width.bit_length() - 1, least), most)
        return f"{between} move {least} to {most} elements at once, powers of two, not {s.width}: width={nearest} fits"
    return ""


def line(s: tile.Copy, place: Place) -> int:
    """Bytes of the line that an asynchronous copy had better ask the second-level cache for; it can where its pieces
    are as wide as can be."""
    wide = (s.width or widest(s, place)) * _bytes(s, place) == WIDEST
    return LINE if s.how == "cp.async" and wide else 0


def prefetch_problem(s: tile.Copy, place: Place) -> str:
    """Why a copy cannot ask the second-level cache for so much; empty when it can."""
    if not s.prefetch:
        return ""
    between = f"copies of {s.source.buffer} to {s.target.buffer}"
    if not line(s, place):
        return f"{between} prefetch nothing, only those by cp.async in pieces of {WIDEST} bytes do: prefetch=0 fits"
    if s.prefetch not in (64, 128, 256):
        return f"{between} prefetch 64, 128 or 256 bytes, not {s.prefetch}: prefetch={LINE} fits"
    return ""


def row_of_pieces(s: tile.Copy, size: int) -> int | None:
    """Elements to count for a row, where that is more than it has: those that are less than a word are found without a
    division then, which would take longer than moving them, and threads beyond the end of a row move nothing."""
    lengths = tile.extents(s.target)
    if s.width > 1 or size >= WORD or len(lengths) < 2 or lengths != tile.extents(s.source):
        return None
    row = 1 << (lengths[-1] - 1).bit_length()
    return row if row > lengths[-1] else None


def pieces(s: tile.Copy, size: int) -> int:
    """How many pieces of its width a copy of elements of so many bytes has, or is counted to have."""
    lengths, row = tile.extents(s.target) or [1], row_of_pieces(s, size)
    return math.prod(lengths) // s.width if row is None else math.prod(lengths[:-1]) * row


def rounds(s: tile.Copy, place: Place, threads: int) -> int:
    """How often each of so many threads moves a piece of a copy; where it says no width, the widest."""
    return -(-pieces(s.replace(width=s.width or widest(s, place)), _bytes(s, place)) // threads)


def rounds_problem(s: tile.Copy, place: Place, threads: int, most: int) -> str:
    """Why so many rounds of a copy by so many threads are not written out at a time; empty where they are."""
    between, every = f"copies of {s.source.buffer} to {s.target.buffer}", rounds(s, place, threads)
    if s.rounds > min(most, every):
        return f"{between} take {every} rounds, of which rounds={min(most, every)} are written out at most"
    if not s.rounds and every > most:
        return f"{between} take {every} rounds, too many to write out: at most rounds={most} at a time"
    return ""


def _bytes(s: tile.Copy, place: Place) -> int:
    return place.buffers[s.source.buffer].dtype.bytes


def row_axis(s: tile.Slice) -> int | None:
    """The axis along which pieces of a slice lie."""
    axes = tile.moved(s)
    return axes[-1] if axes else None


def _begins(s: tile.Slice, place: Place, width: int) -> bool:
    """Rows of a slice lie together and begin at multiples of `width` elements."""
    tensor, axis = place.buffers[s.buffer], row_axis(s)
    if axis is None or tensor.strides[axis] is not const(1) or (s.steps and s.steps[axis] > 1):
        return False
    if place.shared(s.buffer) and panel(tensor, place.tiles[s.buffer].swizzle) % width:
        return False
    several = (d for d, n in enumerate(tensor.shape) if d != axis and n is not const(1))
    rows = all(divides(tensor.strides[d], width) for d in several)
    return rows and divides(simplify(s.starts[axis], place.ranges, index=True), width)


def panel(tensor: Tensor, swizzle: int) -> int:
    """Elements of a row of a tile in shared memory that lie together."""
    row = static(tensor.shape[-1]) if tensor.shape else 1
    return min(row, swizzle // tensor.dtype.bytes) if swizzle else row


def _ends(s: tile.Slice, place: Place, width: int) -> bool:
    """Rows of a buffer in global memory end where a piece does."""
    axis = row_axis(s)
    return place.shared(s.buffer) or divides(const(1) if axis is None else place.buffers[s.buffer].shape[axis], width)


# ---- what may lie outside


def leaving(s: tile.Slice, place: Place) -> tuple[int, ...]:
    """The axes along which elements of a slice may lie outside of a buffer in global memory."""
    if place.shared(s.buffer):
        return ()
    local = Var("local")
    steps = tile.steps(s)
    out = []
    for d, (start, n) in enumerate(zip(s.starts, place.buffers[s.buffer].shape, strict=True)):
        ranges = {**place.ranges, local.name: (0, max(s.lengths[d] - 1, 0))}
        at = start + local * steps[d] if s.lengths[d] else start
        if simplify(_inside(at, n), ranges, index=True) is not both():
            out.append(d)
    return tuple(out)


def _inside(index: Expr, extent: Expr) -> Expr:
    return both(op("ge", index, 0), op("lt", index, extent))
