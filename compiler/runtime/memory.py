"""Memory planning: place temporaries, given sizes and lifetimes, in one arena so that no two live ones overlap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `size` bytes; step `first` first writes it, and step `last` last reads it (inclusive)."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """An arena of `size` bytes with temporary i at byte `offsets[i]`."""

    offsets: tuple[int, ...]
    size: int


# A cache line, and the widest vector: no two temporaries share a line.
ALIGNMENT = 64


def plan(temporaries: Sequence[Lifetime], alignment: int = ALIGNMENT) -> Arena:
    """Place buffers by best fit, largest first; if that exceeds the peak of live bytes, take the best of a few orders.

    >>> plan([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
    Arena(offsets=(0, 64, 0), size=128)
    """
    for temporary in temporaries:
        if temporary.size < 0 or temporary.first > temporary.last:
            raise ValueError(f"not a lifetime: {temporary}; size must be >= 0 and first <= last")
    sizes = [aligned(temporary.size, alignment) for temporary in temporaries]
    bound, best = peak_bytes(temporaries, alignment), Arena((), sum(sizes) + 1)
    for order in _orders(temporaries, sizes):
        candidate = _place_in_order(temporaries, sizes, order)
        best = min(best, candidate, key=lambda arena: arena.size)
        if best.size == bound:
            break
    return best


def _orders(temporaries: Sequence[Lifetime], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Placement orders: by size; by size times length of life; by length of life; those alive at the peak first."""
    indices = range(len(sizes))
    lengths = [t.last - t.first + 1 for t in temporaries]
    alive = _live_bytes(temporaries, sizes)
    peak = alive.index(max(alive))
    dead_at_peak = [not t.first <= peak <= t.last for t in temporaries]
    yield sorted(indices, key=lambda i: (-sizes[i], temporaries[i].first, i))
    yield sorted(indices, key=lambda i: (-sizes[i] * lengths[i], i))
    yield sorted(indices, key=lambda i: (-lengths[i], -sizes[i], i))
    yield sorted(indices, key=lambda i: (dead_at_peak[i], -lengths[i], -sizes[i], i))


def _place_in_order(temporaries: Sequence[Lifetime], sizes: Sequence[int], order: Sequence[int]) -> Arena:
    offsets = [0] * len(sizes)
    placed: list[int] = []
    for new in order:
        live_together = [i for i in placed if _overlap(temporaries[i], temporaries[new])]
        offsets[new] = _best_gap(sorted((offsets[i], offsets[i] + sizes[i]) for i in live_together), sizes[new])
        placed.append(new)
    return Arena(tuple(offsets), max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0))


def peak_bytes(temporaries: Sequence[Lifetime], alignment: int = ALIGNMENT) -> int:
    """The peak of live bytes, in multiples of the alignment: a lower bound on the arena's size.

    >>> peak_bytes([Lifetime(64, 0, 1), Lifetime(4, 1, 2), Lifetime(64, 2, 3)])
    128
    """
    return max(_live_bytes(temporaries, [aligned(t.size, alignment) for t in temporaries]))


def _live_bytes(temporaries: Sequence[Lifetime], sizes: Sequence[int]) -> list[int]:
    """The bytes alive at each step."""
    changes = [0] * (max((t.last for t in temporaries), default=0) + 2)
    for t, size in zip(temporaries, sizes, strict=True):
        changes[t.first] += size
        changes[t.last + 1] -= size
    return list(accumulate(changes))


def with_appended(arena: Arena, sizes: Sequence[int], alignment: int = ALIGNMENT) -> Arena:
    """Append buffers of these sizes to the arena, sharing bytes with no other.

    >>> with_appended(Arena((0,), 64), [4, 100])
    Arena(offsets=(0, 64, 128), size=256)
    """
    offsets, end = list(arena.offsets), arena.size
    for size in sizes:
        offsets.append(end)
        end += aligned(size, alignment)
    return Arena(tuple(offsets), end)


def _best_gap(ranges: Sequence[tuple[int, int]], size: int) -> int:
    """Start of the smallest gap of at least `size` bytes between the taken ranges, else the end of the last range."""
    holes, end = [], 0
    for start, stop in ranges:
        if start - end >= size:
            holes.append((start - end, end))
        end = max(end, stop)
    return min(holes)[1] if holes else end


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Round a size up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


def element_span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Number of elements from the first to the last of a tensor, gaps included."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
