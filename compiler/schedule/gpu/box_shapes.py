"""Extents of loops and a number of elements in; the box of so many elements out of which the fewest cover all."""

from __future__ import annotations

import functools
import itertools
import math

LONGEST = 256  # elements that the copy engine reaches along an axis
UNIT = 16  # elements of a sum that an instruction takes; a step of a pipeline takes as long to begin
RUN = 4  # elements of a run of neighbours that take as long to store as to do all else for them


@functools.cache
def box(extents: tuple[int, ...], length: int, step: int = 1, near: bool = False) -> tuple[int, ...]:
    """The extents of a box of `length` elements of which the fewest cover all, longest along the last axis.

    All but the first are powers of two, so that places in the box are bits of a number. Of elements that are `step`
    apart a box has no more along an axis than the copy engine reaches, if it can be. Where those along the last axis
    are `near` each other in memory, and stored so, long runs of them are worth a few boxes more.

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
    """The box of at most so many elements with which a sum over all is soonest made; empty where there is none.

    It is longer than half of that, as some of an instruction's steps are, and does not go beyond the ends of `whole`
    loops. Elements are `step` apart, at most. Where places in it have to be `bits`, its sides are powers of two.

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
    """Boxes of these lengths that cover loops of these extents."""
    return math.prod(-(-n // x) for n, x in zip(extents, lengths, strict=True))
