"""Packs: one-dimensional tensors that each hold several tensors, which one program makes and another reads.

Each tensor that is passed on costs host time: it is allocated, saved for the backward pass and checked. A pack costs
that once. Among the arguments or the results of a call it is at the position of its first piece, and None is at the
positions of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from compiler.runtime import memory

ALIGNMENT = 512  # of pieces, in bytes, as that of torch's allocations on GPUs


class Layout(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Pack:
    """A one-dimensional tensor of `numel` elements.

    `pieces` has, for each tensor in it, the tensor's position among the arguments or results and its first element in
    the pack, in ascending order of positions.
    """

    numel: int
    pieces: tuple[tuple[int, int], ...]


def starts(spans: Sequence[int], item_bytes: int) -> tuple[tuple[int, ...], int]:
    """Lay out a pack: where its pieces of `spans` elements start, and its number of elements."""
    out, end = [], 0
    for span in spans:
        out.append(end)
        end += memory.aligned(span, ALIGNMENT // item_bytes)
    return tuple(out), end


def moved(packs: Iterable[Pack], position: Mapping[int, int]) -> tuple[Pack, ...]:
    """The packs with their pieces at other positions; pieces without one are left out, as are packs without pieces."""
    out = (
        Pack(pack.numel, tuple(sorted((position[n], start) for n, start in pack.pieces if n in position)))
        for pack in packs
    )
    return tuple(pack for pack in out if pack.pieces)


def within_packs(packs: Iterable[Pack]) -> frozenset[int]:
    """The positions at which there is None."""
    return frozenset(n for pack in packs for n, _ in pack.pieces[1:])


def with_pieces(values: Mapping[int, Any], packs: Iterable[Pack], layouts: Sequence[Layout]) -> dict[int, Any]:
    """Values by position, with the pieces of each pack as views of it."""
    out = dict(values)
    for pack in packs:
        first = values[pack.pieces[0][0]]
        for n, start in pack.pieces:
            out[n] = first.as_strided(layouts[n].shape, layouts[n].stride, first.storage_offset() + start)
    return out
