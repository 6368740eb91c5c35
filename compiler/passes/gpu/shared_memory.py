"""Tiles in shared memory: where their elements lie, in panels and swizzled, in which slot of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compiler.analysis.copies import panel
from compiler.ir.expr import Const, Expr, const, op, static
from compiler.ir.index import Ranges, simplify, value_range
from compiler.ir.linear import Linear, from_linear, linear
from compiler.ir.tensor import Tensor, span
from compiler.targets.layout import swizzle_mask

PIECE = 16  # bytes that a swizzle moves together


@dataclass(frozen=True)
class SharedTile:
    """`array` has a place for the tile in each slot of a pipeline, `size` elements apart.

    Rows longer than the swizzle lie in panels as wide as it, all rows of one before those of the next.
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
        """Elements of a row that lie together."""
        return panel(self.tensor, self.swizzle)

    @property
    def panel(self) -> int:
        """Elements from one panel to the next."""
        return (self.shape[-2] if len(self.shape) > 1 else 1) * self.width


def alignment(swizzle: int) -> int:
    """Bytes at whose multiples a tile must begin: the copy engine asks for 128, a swizzle for 8 rows of it."""
    return max(128, 8 * swizzle)


def size_of(tensor: Tensor, swizzle: int) -> int:
    """Elements from one slot to the next; raises ValueError for a shape that is not known."""
    count = math.prod(static(n) for n in tensor.shape) if swizzle else span(tensor)
    step = alignment(swizzle) // tensor.dtype.bytes
    return -(-count // step) * step


def plain_offset(tile: SharedTile, index: tuple[Expr, ...], ranges: Ranges) -> Expr:
    """Where an element would be without the swizzle, which the copy engine and wgmma apply by themselves."""
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
    """Where an element is in the tile's array; `keep` may give a variable for a part of it that is not negative."""
    made = linear(plain_offset(tile, index, ranges))
    made = made if not tile.swizzle else _swizzled(made, tile, ranges, keep)
    return simplify(from_linear(made) + tile.slot * tile.size, ranges, index=True)


def slot_offset(tile: SharedTile, index: tuple[Expr, ...], ranges: Ranges) -> Expr:
    """`plain_offset` in the array."""
    return simplify(plain_offset(tile, index, ranges) + tile.slot * tile.size, ranges, index=True)


def _swizzled(form: Linear, tile: SharedTile, ranges: Ranges, keep: Callable[[Expr], Expr]) -> Linear:
    """Only bits of the middle change: whole groups of 8 rows, and places inside of a piece, are added behind."""
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
    mixed = exclusive(moved, op("and", op("shr", moved, const(3)), const(mask)))
    return linear(from_linear(high) + keep(mixed) + from_linear(low))


def exclusive(a: Expr, b: Expr) -> Expr:
    """`a ^ b`, computed now where both are literals."""
    if isinstance(a, Const) and isinstance(b, Const):
        return const(int(a.value) ^ int(b.value))
    folded = _fold(b)
    return a if folded is const(0) else op("xor", a, folded)


def _fold(e: Expr) -> Expr:
    """Shifts and masks of literals."""
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
