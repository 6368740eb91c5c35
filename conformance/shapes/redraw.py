"""Benchmarks at random sizes around those of a shape file: speed where nobody has looked, or tuned."""

from __future__ import annotations

import dataclasses
import math
from random import Random

from conformance.shapes.expand import is_valid, timed_choices
from conformance.shapes.specs import CaseSpec, PerfRow, PerfSpec, ShapeFile, ShapeFileError

FAMILY = "redrawn.{dtype}"
LARGE = 128  # sizes that are larger in some row are drawn; others, such as numbers of heads, stay
BEYOND = 2  # drawn are sizes from the least of all rows, divided by this, to the largest, multiplied by it
ALIGNED, ALIGNMENTS = 64, (8, 64)  # sizes that are multiples of ALIGNED in all rows are multiples of one of these
ATTEMPTS = 100  # per row, to meet the condition of the case


def redrawn(file: ShapeFile, count: int | None, seed: int) -> ShapeFile:
    """Return the file with `count` benchmark rows for each case that has some, of random sizes; itself without a count.

    The draws depend on the seed and the names of the file and the case alone. Sizes are drawn evenly on a logarithmic
    scale; cases of small sizes stay as they are. Raises ShapeFileError for a case whose condition no such sizes meet.
    """
    if count is None:
        return file
    cases = (
        spec if spec.perf is None else _redrawn(spec, spec.perf, count, Random(f"{seed} {file.suite} {spec.name}"))
        for spec in file.cases
    )
    return dataclasses.replace(file, cases=tuple(cases))


def _redrawn(spec: CaseSpec, perf: PerfSpec, count: int, rng: Random) -> CaseSpec:
    base, rows = perf.rows[0], dict[str, PerfRow]()
    ranges = {name: sizes for name in spec.dims if max(sizes := _sizes(spec, perf, name)) > LARGE}
    if not ranges:
        return spec
    for _ in range(ATTEMPTS * count):
        drawn = {**base.values, **{name: _draw(sizes, rng) for name, sizes in ranges.items()}}
        row = PerfRow(drawn, base.tier)
        if _holds(spec, perf, row):
            rows.setdefault(repr(drawn), row)
        if len(rows) == count:
            break
    else:
        why = f"{len(rows)} of {ATTEMPTS * count} random sizes around those of its benchmarks meet `where`"
        raise ShapeFileError(spec.file, spec.line, f"case {spec.name}: {why}; {count} are needed")
    return dataclasses.replace(spec, perf=dataclasses.replace(perf, rows=tuple(rows.values())), family=FAMILY)


def _sizes(spec: CaseSpec, perf: PerfSpec, name: str) -> list[int]:
    """Return the values of a dim in the benchmark rows."""
    return [int(row.values.get(name, spec.dims[name][0])) for row in perf.rows]


def _draw(sizes: list[int], rng: Random) -> int:
    """Draw a size around these.

    >>> rng = Random(1)
    >>> [_draw([32, 512], rng) for _ in range(3)], [_draw([2048], rng) for _ in range(3)]
    ([28, 543, 383], [1472, 2944, 2528])
    """
    least, most = min(sizes) / BEYOND, max(sizes) * BEYOND
    drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
    unit = rng.choice(ALIGNMENTS) if all(n % ALIGNED == 0 for n in sizes) else 1
    return max(1, round(drawn / unit)) * unit


def _holds(spec: CaseSpec, perf: PerfSpec, row: PerfRow) -> bool:
    """Return whether the case's condition holds for a row in every dtype."""
    one = dataclasses.replace(perf, rows=(row,))
    return all(is_valid(spec, choice) for choice, _, _ in timed_choices(spec, one))
