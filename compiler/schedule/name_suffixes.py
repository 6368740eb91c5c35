"""Names that steps derive from a few stems by adding endings, and the names held in nested tuples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


def suffixed(stems: tuple[str, ...], end: str) -> tuple[str, ...]:
    """One name per stem: the stem, an underscore and `end`."""
    return tuple(f"{x}_{end}" for x in stems)


def numbered(stem: str, axes: int) -> tuple[str, ...]:
    """Names of the loops along the axes of a tile: the stem alone for one axis, numbered stems for several."""
    return (stem,) if axes == 1 else tuple(f"{stem}{n}" for n in range(axes))


class OnlineLoops(NamedTuple):
    """The loops of an online softmax, by what they do. They run over rows (queries), columns (keys) and features."""

    blocks: tuple[str, str]  # over blocks of queries and of keys
    first: tuple[str]  # clears the row maxima and totals of the softmax
    begin: tuple[str, str]  # clears the weighted sums
    zero: tuple[str, str]  # clears the scores
    score: tuple[str, str]  # accumulates the scores
    edge: tuple[str, str]  # computes the scores from their products: scale, mask, keys beyond the end
    row: tuple[str, str, str]  # the softmax of one query: a loop for its maximum, a loop for its weights
    scale: tuple[str, str]  # rescales the weighted sums so far
    weight: tuple[str, str]  # rounds late weights to their type
    value: tuple[str, str, str]  # accumulates weights times values; the third loop runs over keys
    last: tuple[str, str]  # stores the results


class ChainLoops(NamedTuple):
    """The loops of a matmul whose operand is computed from other products, by what they do: rows, columns, features."""

    blocks: tuple[str, str]  # over blocks of rows and of columns
    row: tuple[str]  # loads the values needed once per row
    column: tuple[str, str]  # loads the values needed once per column; the outer loop stands for all rows
    begin: tuple[str, str]  # clears the sums
    zero: tuple[tuple[str, str], ...]  # clears each product
    score: tuple[tuple[str, str], ...]  # accumulates each product
    weight: tuple[str, str]  # computes the weights from the products
    value: tuple[str, str, str]  # accumulates weights times values; the third loop runs over columns
    last: tuple[str, str]  # stores the results


def strings(value: Any) -> Iterator[str]:
    """The non-empty names in nested tuples of names."""
    if isinstance(value, tuple):
        for v in value:
            yield from strings(v)
    elif value:
        yield value
