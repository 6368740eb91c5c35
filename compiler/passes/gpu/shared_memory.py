"""Tiles in shared memory: the offsets of elements, in panels, swizzled, and in the slot of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compiler.analysis.copies import panel
from compiler.ir.expr import Const, Expr, const, op, static
from compiler.ir.index import simplify
from compiler.ir.linear import Linear, from_linear, linear
from compiler.ir.tensor import Tensor, span
from compiler.ir.value_ranges import Ranges, value_range
from compiler.targets.layout import swizzle_mask

PIECE = 16  # bytes that a swizzle permutes as a unit


@dataclass(frozen=True)
class SharedTile:
    """A tile in shared memory. `array` holds it in each slot of a pipeline, `size` elements apart.

    Rows longer than the swizzle are split into panels of its width; a panel holds its part of all rows.
    """

    tensor: Tensor
    array: str
    swizzle: int
    size: int
    slot: Expr

    def in_slot(self, slot: Expr) -> SharedTile:
        return replace(self, slot=slot)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(static(n) for n in self.tensor.shape)

    @property
    def width(self) -> int:
        """The number of contiguous elements of a row."""
        return panel(self.tensor, self.swizzle)

    @property
    def panel(self) -> int:
        """The number of elements from one panel to the next."""
        return (self.shape[-2] if len(self.shape) > 1 else 1) * self.width


def alignment(swizzle: int) -> int:
    """The alignment of a tile in bytes: the copy engine needs 128, a swizzle 8 rows of its width."""
    return max(128, 8 * swizzle)


def size_of(tensor: Tensor, swizzle: int) -> int:
    """The number of elements from one slot to the next. Raises ValueError for an unknown shape."""
    count = math.prod(static(n) for n in tensor.shape) if swizzle else span(tensor)
    step = alignment(swizzle) // tensor.dtype.bytes
    return -(-count // step) * step


def plain_offset(tile: SharedTile, index: tuple[Expr, ...], ranges: Ranges) -> Expr:
    """The offset of an element without the swizzle, which the copy engine and wgmma apply themselves."""
    shape, width = tile.shape, tile.width
    out: Expr = const(0)
    if not tile.swizzle:
        for i, by in zip(index, tile.tensor.strides, strict=True):
            out = out + i * by
        return simplify(out, ranges, index=True)
    step = math.prod(shape[-2:])
    for i, n in zip(reversed(index[:-2]), reversed(shape[:-2]), strict=True):
        out, step = out + i * step, step * n
    column = index[-1] if index else const(0)
    if len(index) > 1:
        out = out + index[-2] * width
    panels = bool(shape) and shape[-1] > width
    out = out + (column // width * tile.panel + column % width if panels else column)
    return simplify(out, ranges, index=True)


def offset(tile: SharedTile, index: tuple[Expr, ...], ranges: Ranges, keep: Callable[[Expr], Expr]) -> Expr:
    """The offset of an element in the tile's array. `keep` may put a nonnegative part of it into a variable."""
    made = linear(plain_offset(tile, index, ranges))
    made = made if not tile.swizzle else _swizzle(made, tile, ranges, keep)
    return simplify(from_linear(made) + tile.slot * tile.size, ranges, index=True)


def slot_offset(tile: SharedTile, index: tuple[Expr, ...], ranges: Ranges) -> Expr:
    """`plain_offset` within the array, including the slot."""
    return simplify(plain_offset(tile, index, ranges) + tile.slot * tile.size, ranges, index=True)


def _swizzle(form: Linear, tile: SharedTile, ranges: Ranges, keep: Callable[[Expr], Expr]) -> Linear:
    """Swizzle an offset. Only its middle bits change: multiples of 8 rows and offsets in a piece are added later."""
    size = tile.tensor.dtype.bytes
    group, mask = 8 * tile.swizzle // size, swizzle_mask(tile.swizzle) // size
    terms, rest = form
    high: Linear = {e: c for e, c in terms.items() if c % group == 0}, rest // group * group
    middle: Linear = {e: c for e, c in terms.items() if c % group}, rest % group
    low: Linear = {}, 0
    for unit in _units(PIECE // size):
        inside: Linear = {e: c for e, c in middle[0].items() if c % unit}, middle[1] % unit
        least, most = value_range(from_linear(inside), ranges)
        if least is not None and most is not None and least >= 0 and most < unit:
            low = inside
            middle = {e: c for e, c in middle[0].items() if c % unit == 0}, middle[1] - middle[1] % unit
            break
    moved = simplify(from_linear(middle), ranges, index=True)
    mixed = xor(moved, op("and", op("shr", moved, const(3)), const(mask)))
    return linear(from_linear(high) + keep(mixed) + from_linear(low))


def xor(a: Expr, b: Expr) -> Expr:
    """`a ^ b`, folded if both are constants."""
    if isinstance(a, Const) and isinstance(b, Const):
        return const(int(a.value) ^ int(b.value))
    folded = _fold(b)
    return a if folded is const(0) else op("xor", a, folded)


def _fold(e: Expr) -> Expr:
    """Fold shifts and masks of constants."""
    if isinstance(e, Const) or not hasattr(e, "args"):
        return e
    args = tuple(map(_fold, e.args))
    if all(isinstance(a, Const) for a in args):
        x, y = (int(a.value) for a in args if isinstance(a, Const))
        return const({"and": x & y, "shr": x >> y}[e.name] if hasattr(e, "name") and e.name in ("and", "shr") else x)
    return e


def _units(most: int) -> Iterator[int]:
    while most > 1:
        yield most
        most //= 2
