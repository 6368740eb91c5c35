"""Names of many loops from a few stems: what steps add to these; and names out of tuples of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


def suffixed(stems: tuple[str, ...], end: str) -> tuple[str, ...]:
    """A name with that ending for each stem."""
    return tuple(f"{x}_{end}" for x in stems)


def numbered(stem: str, axes: int) -> tuple[str, ...]:
    """Loops along so many axes of a tile."""
    return (stem,) if axes == 1 else tuple(f"{stem}{n}" for n in range(axes))


class OnlineLoops(NamedTuple):
    """The loops of a softmax in one pass, by what they do: those over rows (queries), columns (keys) and features."""

    blocks: tuple[str, str]  # over blocks of queries and of keys
    first: tuple[str]  # clears what the softmax accumulates
    begin: tuple[str, str]  # clears the sums
    zero: tuple[str, str]  # clears the scores
    score: tuple[str, str]  # sums up the scores
    edge: tuple[str, str]  # completes them
    row: tuple[str, str, str]  # the softmax of a query, with a loop for its maximum and one for its weights
    scale: tuple[str, str]  # rescales the sums so far
    weight: tuple[str, str]  # rounds late weights
    value: tuple[str, str, str]  # adds the values, with a third loop over keys
    last: tuple[str, str]  # stores


class ChainLoops(NamedTuple):
    """The loops of a matmul of what other products make, by what they do: over rows, columns and features."""

    blocks: tuple[str, str]  # over blocks of rows and of columns
    row: tuple[str]  # loads what there is once for a row
    column: tuple[str, str]  # loads what there is once for a column, by a loop around that stands for all rows
    begin: tuple[str, str]  # clears the sums
    zero: tuple[tuple[str, str], ...]  # clears each product
    score: tuple[tuple[str, str], ...]  # sums it up
    weight: tuple[str, str]  # makes weights of products
    value: tuple[str, str, str]  # adds the values, with a third loop over columns
    last: tuple[str, str]  # stores


def strings(value: Any) -> Iterator[str]:
    """The names in tuples of tuples of names, without empty ones."""
    if isinstance(value, tuple):
        for v in value:
            yield from strings(v)
    elif value:
        yield value
