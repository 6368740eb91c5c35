"""Shapes of boxes: which box of a given number of elements covers several loops with the fewest boxes."""

from __future__ import annotations

import functools
import itertools
import math

MAX_BOX_SIDE = 256  # elements along an axis that the copy engine (TMA) reaches
UNIT = 16  # elements of a sum per instruction; starting a pipeline step takes as long
RUN_WEIGHT = 4  # storing a run of so many neighbours takes as long as all other work on them


@functools.cache
def box(extents: tuple[int, ...], length: int, step: int = 1, near: bool = False) -> tuple[int, ...]:
    """Extents of the box of `length` elements of which the fewest cover `extents`; ties: longest last axis.

    All extents but the first are powers of two, so that positions in the box are bits of a number. Elements are `step`
    apart; if possible, the box spans at most `MAX_BOX_SIDE` elements along each axis. With `near`, the last axis is
    contiguous where results are stored, and long runs along it are worth a few more boxes.

    >>> box((32, 56, 56), 64)
    (1, 8, 8)
    >>> box((32, 28, 28), 128)
    (8, 4, 4)
    >>> box((1, 7, 7), 64)
    (1, 8, 8)
    >>> box((32, 28, 28), 128, near=True)
    (1, 4, 32)
    """
    powers = [1 << n for n in range(length.bit_length()) if length % (1 << n) == 0]
    candidates = itertools.product(powers, repeat=len(extents) - 1)
    boxes = [(length // math.prod(some), *some) for some in candidates if length % math.prod(some) == 0]
    boxes = [b for b in boxes if max(b) * step <= MAX_BOX_SIDE] or boxes
    return min(boxes, key=lambda b: (count(extents, b) * (1 + RUN_WEIGHT / min(b[-1], extents[-1]) if near else 1), b))


@functools.cache
def reduction_box(
    extents: tuple[int, ...], divides: tuple[bool, ...], max_elements: int, step: int = 1, bits: bool = False
) -> tuple[int, ...]:
    """The box of at most `max_elements` that makes a sum over all loops fastest; empty if there is none.

    It has more than `max_elements` / 2 elements, a multiple of the depth of an instruction. Its sides divide the loops
    for which `divides` holds. Elements are `step` apart. If positions in it must be `bits`, its sides are powers of
    two.

    >>> reduction_box((32, 14, 14), (False, True, True), 128)
    (32, 2, 2)
    >>> reduction_box((32, 7, 7), (False, True, True), 128)
    (16, 1, 7)
    >>> reduction_box((3, 7, 7), (True, True, True), 128)
    ()
    """
    sides = [
        [
            x
            for x in range(1, min(max_elements, MAX_BOX_SIDE // step) + 1)
            if (n % x == 0 or not w) and not (bits and x & (x - 1))
        ]
        for n, w in zip(extents, divides, strict=True)
    ]
    boxes = [
        b
        for b in itertools.product(*sides)
        if max_elements // 2 < math.prod(b) <= max_elements and math.prod(b) % UNIT == 0
    ]

    def sort_key(b: tuple[int, ...]) -> tuple[int, ...]:
        return count(extents, b) * (math.prod(b) + UNIT), *(-x for x in reversed(b))

    return min(boxes, default=(), key=sort_key)


def count(extents: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Number of boxes of these lengths that cover loops of these extents."""
    return math.prod(-(-n // x) for n, x in zip(extents, lengths, strict=True))
