"""`mlcomp history`: detect the run since which a kernel is lastingly slower or faster (change point detection).

    mlcomp history reports/history/<device>.jsonl

A comparison with a baseline passes slowdowns below its threshold, and ten of those add up. This looks at the whole
series of a kernel's speedups over eager, which runs in the same rounds, so that machine and time of day cancel. Without
a change, all permutations of a series are equally likely. The best split is the one with the largest difference of mean
ranks in units of its standard deviation; its p-value is estimated from random permutations. Over all kernels the false
discovery rate is limited to 1 % (Benjamini-Hochberg). Both parts of a split series are searched in the same way.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformance.bench import duel
from conformance.history.journal import Entry, HistoryError, read
from conformance.report import tables
from conformance.report.writer import geomean
from conformance.rows import EAGER, Columns

Values = NDArray[np.float64]
RATE = 0.01  # false discovery rate
ORDERS = 20_000  # random permutations for a p-value
SHORTEST = 3  # fewest runs on either side of a change
ALL = "geometric mean of all"


@dataclass(frozen=True)
class Change:
    """Since the run `since` a kernel is `ratio` times as fast as before; `chance` is the p-value.

    `same` means that its code is equal, so that something else has changed.
    """

    name: str
    ratio: float
    before: Entry
    since: Entry
    chance: float
    same: bool = False


COLUMNS: Columns = {
    "kernel": "name",
    "speed": lambda row: f"{row.ratio - 1:+.1%}",
    "since": lambda row: f"{row.since.when[:16]} {row.since.env.get('commit') or ''}".strip(),
    "last before": lambda row: f"{row.before.when[:16]} {row.before.env.get('commit') or ''}".strip(),
    "chance": lambda row: f"{row.chance:.1g}",
    "with": lambda row: "; ".join(filter(None, ("equal code" if row.same else "", _elsewhere(row)))),
}


def split(values: Values, rng: np.random.Generator) -> tuple[int, float]:
    """Return the index of the best split of a series, and its p-value; (0, 1.0) if the series is too short.

    >>> split(np.array([1.0] * 9 + [1.1] * 9) + np.arange(18) % 3 / 100, np.random.default_rng(0))[0]
    9
    """
    count = len(values)
    if count < 2 * SHORTEST:
        return 0, 1.0
    ranks: Values = (values.argsort().argsort() - (count - 1) / 2).astype(np.float64)
    places = np.arange(SHORTEST, count - SHORTEST + 1)
    spread = np.sqrt(places * (count - places))

    def best(orders: Values) -> Values:
        return np.asarray(np.abs(np.cumsum(orders, axis=-1)[..., places - 1]) / spread)

    found = best(ranks)
    orders: Values = rng.permuted(np.tile(ranks, (ORDERS, 1)), axis=1)
    others = best(orders).max(axis=1)
    # The observed order counts as one of the permutations, so that no p-value is 0.
    return int(places[found.argmax()]), float((1 + (others >= found.max() - 1e-9).sum()) / (1 + ORDERS))


def changes(entries: Sequence[Entry]) -> list[Change]:
    """Return the lasting changes, the largest slowdown first."""
    rng = np.random.default_rng(0)
    named = _series(entries)
    first = {name: split(values, rng) for name, (_, values) in named.items()}
    stands = duel.discoveries([chance for _, chance in first.values()], RATE)
    found = []
    for n, (name, (known, values)) in enumerate(named.items()):
        if n in stands:
            found += _within(name, known, values, first[name], rng)
    return sorted(found, key=lambda change: change.ratio)


def _within(
    name: str, entries: Sequence[Entry], values: Values, parted: tuple[int, float], rng: np.random.Generator
) -> list[Change]:
    """Return the change at the split `parted`, and recursively those in the parts on either side."""
    at, chance = parted
    ratio = math.exp(float(np.median(values[at:]) - np.median(values[:at])))
    codes = {entry.benches.get(name, {}).get("code") for entry in entries[at - 1 : at + 1]}
    found = [Change(name, ratio, entries[at - 1], entries[at], chance, len(codes) == 1 and name != ALL)]
    for part in (slice(0, at), slice(at, None)):
        further = split(values[part], rng)
        if further[1] <= RATE:
            found += _within(name, entries[part], values[part], further, rng)
    return found


def _series(entries: Sequence[Entry]) -> Mapping[str, tuple[list[Entry], Values]]:
    """Return for each kernel the runs that timed it against eager, and the logarithms of its speedups."""
    found: dict[str, tuple[list[Entry], list[float]]] = {}
    for entry in entries:
        speedups = {name: one["over"][EAGER] for name, one in entry.benches.items() if one["over"].get(EAGER)}
        mean = geomean(list(speedups.values()))
        # Only runs with the kernels of the last run have a mean; else additions to the suite would look like changes.
        whole = mean if entry.benches.keys() == entries[-1].benches.keys() else None
        for name, speedup in (*speedups.items(), *([(ALL, whole)] if whole else [])):
            runs, values = found.setdefault(name, ([], []))
            runs.append(entry)
            values.append(math.log(speedup))
    return {name: (runs, np.array(values)) for name, (runs, values) in found.items()}


def _elsewhere(change: Change) -> str:
    """Return the changes of the environment."""
    then, now = change.before.env, change.since.env
    return ", ".join(
        f"{k} {then.get(k)} → {now.get(k)}" for k in sorted(now) if k != "commit" and then.get(k) != now[k]
    )


def said(path: Path, entries: Sequence[Entry]) -> str:
    """Return the report on a history."""
    found = changes(entries)
    ends = f", {entries[0].when[:10]} to {entries[-1].when[:10]}" if entries else ""
    what = tables.columns(found, COLUMNS) if found else "Nothing has changed for good, as far as so many runs can tell."
    return f"# {path.stem}\n\n{len(entries)} runs{ends}.\n\n{what}\n"


def main(words: Sequence[str]) -> int:
    """Print the reports; returns 0, or 2 if there is no history or it cannot be read."""
    parser = argparse.ArgumentParser(prog="mlcomp history", description="Since when kernels are slower or faster.")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="histories (default: reports/history)")
    files = parser.parse_args(words).files or sorted(Path("reports/history").glob("*.jsonl"))
    try:
        if not files:
            raise HistoryError(
                "there is no reports/history/<device>.jsonl; `pytest --mlcomp --mlcomp-record` adds to it"
            )
        print("\n".join(said(file, read(file)) for file in files), end="")
    except HistoryError as error:
        print(f"mlcomp: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
