"""Rules for copies by the threads of a block: how wide their accesses may be, and where they may leave a buffer.

Planners follow these rules, and schedules are checked against them; no pass narrows a width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, Var, both, const, op, static
from compiler.ir.index import simplify
from compiler.ir.multiples import divides
from compiler.ir.ranges import Range
from compiler.ir.roles import One, Role
from compiler.ir.statement import If, Kernel, Let, Stmt, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import range_below, value_range

WIDEST = 16  # bytes per access
WORD = 4  # bytes per register
PIECES = (16, 8, 4)  # bytes per asynchronous copy
LINE = 128  # bytes that a copy can prefetch to the second-level cache
BY_THREADS = ("plain", "cp.async")


@dataclass(frozen=True)
class Place:
    """What is known at a copy: buffers, the tiles among them, and ranges of loop variables."""

    buffers: Mapping[str, Tensor]
    tiles: Mapping[str, tile.Alloc]
    ranges: Mapping[str, Range]

    def shared(self, buffer: str) -> bool:
        """Whether it is a tile in shared memory."""
        return buffer in self.tiles and self.tiles[buffer].space in ("shared", "cluster")

    def by_threads(self, s: tile.Copy) -> bool:
        """Whether threads make the copy: not the copy engine, and not into fragments of tensor instructions."""
        target = self.tiles.get(s.target.buffer)
        return s.how in BY_THREADS and (target is None or target.space != "registers")


def copies(kernel: Kernel) -> Iterator[tuple[tile.Copy, Place]]:
    """The copies of a kernel that threads make, with their places."""
    found: list[tuple[tile.Copy, Place]] = []

    def note(s: tile.Copy, place: Place) -> tile.Copy:
        found.append((s, place))
        return s

    changed(kernel, note)
    yield from found


def changed(kernel: Kernel, change: Callable[[tile.Copy, Place], tile.Copy]) -> Kernel:
    """The kernel with `change` applied to its copies by threads."""

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
    """Elements per access: the largest power of two that divides rows and to which both sides are aligned.

    Rows of a plain copy must also end at a multiple of it; an asynchronous copy moves what is left of a row.
    """
    lengths = [x[-1] for x in (tile.extents(s.target), tile.extents(s.source)) if x]
    sides = (s.target, s.source)

    def fits(width: int) -> bool:
        ends = s.how == "cp.async" or all(_has_aligned_ends(x, place, width) for x in sides)
        return ends and math.gcd(*lengths) % width == 0 and all(_has_aligned_rows(x, place, width) for x in sides)

    width = max(1, WIDEST // _bytes(s, place))
    while width > 1 and not fits(width):
        width //= 2
    return width


def width_problem(s: tile.Copy, place: Place) -> str:
    """Why threads cannot make a copy with its width, and what would do; empty if they can."""
    most, size = widest(s, place), _bytes(s, place)
    what = f"copies of {s.source.buffer} to {s.target.buffer}"
    if s.how == "cp.async" and most * size < PIECES[-1]:
        return (
            f"{what} cannot be asynchronous, they are known to begin at multiples of {most * size} bytes only, and "
            f'cp.async moves {PIECES[-1]}, 8 or 16: copy how="plain", width={most}'
        )
    least = -(-PIECES[-1] // size) if s.how == "cp.async" else 1
    if s.width and (s.width & (s.width - 1) or not least <= s.width <= most):
        nearest = min(max(1 << s.width.bit_length() - 1, least), most)
        return f"{what} move {least} to {most} elements at once, powers of two, not {s.width}: width={nearest} fits"
    return ""


def line(s: tile.Copy, place: Place) -> int:
    """Bytes that an asynchronous copy should prefetch to the L2; 0 unless its pieces are of full width."""
    wide = (s.width or widest(s, place)) * _bytes(s, place) == WIDEST
    return LINE if s.how == "cp.async" and wide else 0


def prefetch_problem(s: tile.Copy, place: Place) -> str:
    """Why a copy cannot prefetch so many bytes; empty if it can."""
    if not s.prefetch:
        return ""
    what = f"copies of {s.source.buffer} to {s.target.buffer}"
    if not line(s, place):
        return f"{what} prefetch nothing, only those by cp.async in pieces of {WIDEST} bytes do: prefetch=0 fits"
    if s.prefetch not in (64, 128, 256):
        return f"{what} prefetch 64, 128 or 256 bytes, not {s.prefetch}: prefetch={LINE} fits"
    return ""


def row_of_pieces(s: tile.Copy, size: int) -> int | None:
    """Elements to count for a row if they are more than it has (the next power of two); else None.

    The position of elements smaller than a word is then found without a division, which would take longer than moving
    them; threads beyond the end of a row move nothing.
    """
    lengths = tile.extents(s.target)
    if s.width > 1 or size >= WORD or len(lengths) < 2 or lengths != tile.extents(s.source):
        return None
    row = 1 << (lengths[-1] - 1).bit_length()
    return row if row > lengths[-1] else None


def pieces(s: tile.Copy, size: int) -> int:
    """The number of pieces of its width that a copy of elements of `size` bytes has, or is counted to have."""
    lengths, row = tile.extents(s.target) or [1], row_of_pieces(s, size)
    return math.prod(lengths) // s.width if row is None else math.prod(lengths[:-1]) * row


def rounds(s: tile.Copy, place: Place, threads: int) -> int:
    """How many pieces of a copy each of `threads` threads moves, at its width or else the widest."""
    return -(-pieces(s.replace(width=s.width or widest(s, place)), _bytes(s, place)) // threads)


def rounds_problem(s: tile.Copy, place: Place, threads: int, most: int) -> str:
    """Why a copy by `threads` threads cannot be unrolled to its rounds; empty if it can."""
    what, needed = f"copies of {s.source.buffer} to {s.target.buffer}", rounds(s, place, threads)
    if s.rounds > min(most, needed):
        return f"{what} take {needed} rounds, of which rounds={min(most, needed)} are written out at most"
    if not s.rounds and needed > most:
        return f"{what} take {needed} rounds, too many to write out: at most rounds={most} at a time"
    return ""


def _bytes(s: tile.Copy, place: Place) -> int:
    return place.buffers[s.source.buffer].dtype.bytes


def row_axis(s: tile.Slice) -> int | None:
    """The axis along which pieces of a slice lie."""
    axes = tile.moved(s)
    return axes[-1] if axes else None


def _has_aligned_rows(s: tile.Slice, place: Place, width: int) -> bool:
    """Whether rows of a slice are contiguous and begin at multiples of `width` elements."""
    tensor, axis = place.buffers[s.buffer], row_axis(s)
    if axis is None or tensor.strides[axis] is not const(1) or (s.steps and s.steps[axis] > 1):
        return False
    if place.shared(s.buffer) and panel(tensor, place.tiles[s.buffer].swizzle) % width:
        return False
    other_axes = (d for d, n in enumerate(tensor.shape) if d != axis and n is not const(1))
    rows = all(divides(tensor.strides[d], width) for d in other_axes)
    return rows and divides(simplify(s.starts[axis], place.ranges, index=True), width)


def panel(tensor: Tensor, swizzle: int) -> int:
    """Contiguous elements of a row of a tile in shared memory."""
    row = static(tensor.shape[-1]) if tensor.shape else 1
    return min(row, swizzle // tensor.dtype.bytes) if swizzle else row


def _has_aligned_ends(s: tile.Slice, place: Place, width: int) -> bool:
    """Whether rows of a buffer in global memory end at a multiple of `width`."""
    axis = row_axis(s)
    return place.shared(s.buffer) or divides(const(1) if axis is None else place.buffers[s.buffer].shape[axis], width)


# ---- what may be out of bounds


def leaving(s: tile.Slice, place: Place) -> tuple[int, ...]:
    """The axes along which elements of a slice may be outside of its buffer in global memory."""
    if place.shared(s.buffer):
        return ()
    local = Var("local")
    steps = tile.steps(s)
    out = []
    for d, (start, n) in enumerate(zip(s.starts, place.buffers[s.buffer].shape, strict=True)):
        ranges = {**place.ranges, local.name: (0, max(s.lengths[d] - 1, 0))}
        at = start + local * steps[d] if s.lengths[d] else start
        if simplify(_in_bounds(at, n), ranges, index=True) is not both():
            out.append(d)
    return tuple(out)


def _in_bounds(index: Expr, extent: Expr) -> Expr:
    return both(op("ge", index, 0), op("lt", index, extent))
