"""Shapes of boxes: which box of a given number of elements covers several loops with the fewest boxes."""

from __future__ import annotations

import functools
import itertools
import math

LONGEST = 256  # elements along an axis that the copy engine (TMA) reaches
UNIT = 16  # elements of a sum per instruction; starting a pipeline step takes as long
RUN = 4  # storing a run of so many neighbours takes as long as all other work on them


@functools.cache
def box(extents: tuple[int, ...], length: int, step: int = 1, near: bool = False) -> tuple[int, ...]:
    """Extents of the box of `length` elements of which the fewest cover `extents`; ties: longest last axis.

    All extents but the first are powers of two, so that positions in the box are bits of a number. Elements are `step`
    apart; if possible, the box spans at most `LONGEST` elements along each axis. With `near`, the last axis is
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
    every = itertools.product(powers, repeat=len(extents) - 1)
    boxes = [(length // math.prod(some), *some) for some in every if length % math.prod(some) == 0]
    boxes = [b for b in boxes if max(b) * step <= LONGEST] or boxes
    return min(boxes, key=lambda b: (count(extents, b) * (1 + RUN / min(b[-1], extents[-1]) if near else 1), b))


@functools.cache
def summed(
    extents: tuple[int, ...], whole: tuple[bool, ...], most: int, step: int = 1, bits: bool = False
) -> tuple[int, ...]:
    """The box of at most `most` elements that makes a sum over all loops fastest; empty if there is none.

    It has more than `most` / 2 elements, a multiple of the depth of an instruction, and divides `whole` loops evenly.
    Elements are `step` apart. If positions in it must be `bits`, its sides are powers of two.

    >>> summed((32, 14, 14), (False, True, True), 128)
    (32, 2, 2)
    >>> summed((32, 7, 7), (False, True, True), 128)
    (16, 1, 7)
    >>> summed((3, 7, 7), (True, True, True), 128)
    ()
    """
    sides = [
        [x for x in range(1, min(most, LONGEST // step) + 1) if (n % x == 0 or not w) and not (bits and x & (x - 1))]
        for n, w in zip(extents, whole, strict=True)
    ]
    boxes = [b for b in itertools.product(*sides) if most // 2 < math.prod(b) <= most and math.prod(b) % UNIT == 0]

    def takes(b: tuple[int, ...]) -> tuple[int, ...]:
        return count(extents, b) * (math.prod(b) + UNIT), *(-x for x in reversed(b))

    return min(boxes, default=(), key=takes)


def count(extents: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Number of boxes of these lengths that cover loops of these extents."""
    return math.prod(-(-n // x) for n, x in zip(extents, lengths, strict=True))
