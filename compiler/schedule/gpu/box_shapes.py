"""Extents of loops and a number of elements in; the box of so many elements out of which the fewest cover all."""

from __future__ import annotations

import functools
import itertools
import math

LONGEST = 256  # elements that the copy engine reaches along an axis
RUN = 4  # elements of a run of neighbours that take as long to store as to do all else for them


@functools.cache
def box(
    extents: tuple[int, ...], length: int, step: int = 1, near: bool = False, whole: tuple[bool, ...] = ()
) -> tuple[int, ...]:
    """The extents of a box of `length` elements of which the fewest cover all, longest along the last axis.

    All but the first are powers of two, so that places in the box are bits of a number. Of elements that are `step`
    apart a box has no more along an axis than the copy engine reaches, if it can be. Where those along the last axis
    are `near` each other in memory, and stored so, long runs of them are worth a few boxes more. No box goes beyond the
    end of a `whole` loop: there may be none.

    >>> box((32, 56, 56), 64)
    (1, 8, 8)
    >>> box((32, 28, 28), 128)
    (8, 4, 4)
    >>> box((1, 7, 7), 64)
    (1, 8, 8)
    >>> box((32, 28, 28), 128, near=True)
    (1, 4, 32)
    >>> box((20, 14, 14), 64, whole=(False, True, True))
    (16, 2, 2)
    """
    powers = [1 << n for n in range(length.bit_length()) if length % (1 << n) == 0]
    every = itertools.product(powers, repeat=len(extents) - 1)
    boxes = [(length // math.prod(some), *some) for some in every if length % math.prod(some) == 0]
    boxes = [b for b in boxes if not any(w and n % x for w, n, x in zip(whole, extents, b, strict=False))]
    boxes = [b for b in boxes if max(b) * step <= LONGEST] or boxes
    run = {b: 1 + RUN / min(b[-1], extents[-1]) if near else 1 for b in boxes}
    return min(boxes, default=(), key=lambda b: (count(extents, b) * run[b], b))


def count(extents: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Boxes of these lengths that cover loops of these extents."""
    return math.prod(-(-n // x) for n, x in zip(extents, lengths, strict=True))
