"""Pairwise (all-pairs) combination of factors: every feasible pair of values occurs together in some row.

A row has an index of a value for each factor. The algorithm is greedy and deterministic. The first row has the first
value of every factor, if the filter allows it.
"""

import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations, product
from math import prod

Row = tuple[int, ...]
Pair = tuple[tuple[int, int], tuple[int, int]]
_TRIES = 400


def pairwise(counts: Sequence[int], valid: Callable[[Row], bool]) -> list[Row]:
    """Return a small set of valid rows that contains each pair of values that a valid row can contain.

    >>> pairwise([2, 2, 2], lambda row: True)
    [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]
    """
    memo: dict[Row, bool] = {}

    def is_valid(row: Row) -> bool:
        if row not in memo:
            memo[row] = valid(row)
        return memo[row]

    first = _complete({}, counts, set(), is_valid)
    if first is None:
        return []
    rows = [first]
    open_pairs = dict.fromkeys(
        ((i, a), (j, b))
        for i, j in combinations(range(len(counts)), 2)
        for a, b in product(range(counts[i]), range(counts[j]))
    )
    _cover_pairs(open_pairs, first)
    while open_pairs:
        pair = next(iter(open_pairs))
        row = _complete(dict(pair), counts, open_pairs.keys(), is_valid)
        if row is None:
            del open_pairs[pair]  # no valid row with this pair was found
        else:
            rows.append(row)
            _cover_pairs(open_pairs, row)
    return rows


def cross(counts: Sequence[int], valid: Callable[[Row], bool], limit: int, name: str) -> list[Row]:
    """Return all valid rows, or if there are more than `limit` rows the valid ones of a sample seeded by `name`."""
    total = prod(counts)
    if total <= limit:
        return [row for row in product(*map(range, counts)) if valid(row)]
    draw = random.Random(name)
    # random.sample cannot handle ranges beyond sys.maxsize; numbers drawn independently from these rarely coincide.
    drawn = draw.sample(range(total), limit) if total <= sys.maxsize else [draw.randrange(total) for _ in range(limit)]
    return [row for row in (_digits(number, counts) for number in sorted(drawn)) if valid(row)]


def _digits(number: int, counts: Sequence[int]) -> Row:
    digits = []
    for count in reversed(counts):
        number, digit = divmod(number, count)
        digits.append(digit)
    return tuple(reversed(digits))


def _cover_pairs(open_pairs: dict[Pair, None], row: Row) -> None:
    for pair in combinations(enumerate(row), 2):
        open_pairs.pop(pair, None)


def _complete(
    fixed: dict[int, int], counts: Sequence[int], uncovered: Collection[Pair], valid: Callable[[Row], bool]
) -> Row | None:
    """Return a row with the fixed values that greedily covers most wanted pairs, or a valid row near it, or None."""
    chosen = dict(fixed)
    for factor, count in enumerate(counts):
        if factor not in chosen:
            gains = [
                sum(_pair((factor, value), other) in uncovered for other in chosen.items()) for value in range(count)
            ]
            chosen[factor] = gains.index(max(gains))
    best = tuple(chosen[factor] for factor in range(len(counts)))
    free = [factor for factor, count in enumerate(counts) if factor not in fixed and count > 1]
    return next((row for row in _neighbours(best, free, counts) if valid(row)), None)


def _neighbours(best: Row, free: Sequence[int], counts: Sequence[int]) -> Iterator[Row]:
    """Yield the row, then rows that differ in one and two free factors, then all others or a random sample."""
    yield best
    for width in (1, 2):
        for factors in combinations(free, width):
            for values in product(*(range(counts[factor]) for factor in factors)):
                yield _with_values(best, factors, values)
    if prod(counts[factor] for factor in free) <= _TRIES:
        yield from (_with_values(best, free, values) for values in product(*(range(counts[factor]) for factor in free)))
    else:
        draw = random.Random(0)
        yield from (
            _with_values(best, free, [draw.randrange(counts[factor]) for factor in free]) for _ in range(_TRIES)
        )


def _with_values(row: Row, factors: Sequence[int], values: Sequence[int]) -> Row:
    changed = list(row)
    for factor, value in zip(factors, values, strict=True):
        changed[factor] = value
    return tuple(changed)


def _pair(one: tuple[int, int], other: tuple[int, int]) -> Pair:
    return (one, other) if one < other else (other, one)
