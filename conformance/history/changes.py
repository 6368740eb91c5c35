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
OVERALL = "geometric mean of all"


@dataclass(frozen=True)
class Change:
    """Since the run `since` a kernel is `ratio` times as fast as before; `p_value` belongs to that split.

    `has_equal_code` means that its code is equal, so that something else has changed.
    """

    name: str
    ratio: float
    before: Entry
    since: Entry
    p_value: float
    has_equal_code: bool = False


COLUMNS: Columns = {
    "kernel": "name",
    "speed": lambda row: f"{row.ratio - 1:+.1%}",
    "since": lambda row: f"{row.since.when[:16]} {row.since.env.get('commit') or ''}".strip(),
    "last before": lambda row: f"{row.before.when[:16]} {row.before.env.get('commit') or ''}".strip(),
    "chance": lambda row: f"{row.p_value:.1g}",
    "with": lambda row: "; ".join(
        filter(None, ("equal code" if row.has_equal_code else "", _environment_changes(row)))
    ),
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
    positions = np.arange(SHORTEST, count - SHORTEST + 1)
    spread = np.sqrt(positions * (count - positions))

    def best(orders: Values) -> Values:
        return np.asarray(np.abs(np.cumsum(orders, axis=-1)[..., positions - 1]) / spread)

    scores = best(ranks)
    orders: Values = rng.permuted(np.tile(ranks, (ORDERS, 1)), axis=1)
    permuted_scores = best(orders).max(axis=1)
    # The observed order counts as one of the permutations, so that no p-value is 0.
    return int(positions[scores.argmax()]), float((1 + (permuted_scores >= scores.max() - 1e-9).sum()) / (1 + ORDERS))


def changes(entries: Sequence[Entry]) -> list[Change]:
    """Return the lasting changes, the largest slowdown first."""
    rng = np.random.default_rng(0)
    series = _series(entries)
    splits = {name: split(values, rng) for name, (_, values) in series.items()}
    significant = duel.discoveries([p_value for _, p_value in splits.values()], RATE)
    lasting = []
    for n, (name, (runs, values)) in enumerate(series.items()):
        if n in significant:
            lasting += _changes_within(name, runs, values, splits[name], rng)
    return sorted(lasting, key=lambda change: change.ratio)


def _changes_within(
    name: str, entries: Sequence[Entry], values: Values, split_point: tuple[int, float], rng: np.random.Generator
) -> list[Change]:
    """Return the change at the split `split_point`, and recursively those in the parts on either side."""
    position, p_value = split_point
    ratio = math.exp(float(np.median(values[position:]) - np.median(values[:position])))
    codes = {entry.benches.get(name, {}).get("code") for entry in entries[position - 1 : position + 1]}
    lasting = [
        Change(name, ratio, entries[position - 1], entries[position], p_value, len(codes) == 1 and name != OVERALL)
    ]
    for part in (slice(0, position), slice(position, None)):
        next_split = split(values[part], rng)
        if next_split[1] <= RATE:
            lasting += _changes_within(name, entries[part], values[part], next_split, rng)
    return lasting


def _series(entries: Sequence[Entry]) -> Mapping[str, tuple[list[Entry], Values]]:
    """Return for each kernel the runs that timed it against eager, and the logarithms of its speedups."""
    series: dict[str, tuple[list[Entry], list[float]]] = {}
    for entry in entries:
        speedups = {name: bench["over"][EAGER] for name, bench in entry.benches.items() if bench["over"].get(EAGER)}
        mean = geomean(list(speedups.values()))
        # Only runs with the kernels of the last run have a mean; else additions to the suite would look like changes.
        overall = mean if entry.benches.keys() == entries[-1].benches.keys() else None
        for name, speedup in (*speedups.items(), *([(OVERALL, overall)] if overall else [])):
            runs, values = series.setdefault(name, ([], []))
            runs.append(entry)
            values.append(math.log(speedup))
    return {name: (runs, np.array(values)) for name, (runs, values) in series.items()}


def _environment_changes(change: Change) -> str:
    """Return the changes of the environment."""
    before, since = change.before.env, change.since.env
    return ", ".join(
        f"{k} {before.get(k)} → {since.get(k)}" for k in sorted(since) if k != "commit" and before.get(k) != since[k]
    )


def report(path: Path, entries: Sequence[Entry]) -> str:
    """Return the report on a history."""
    lasting = changes(entries)
    period = f", {entries[0].when[:10]} to {entries[-1].when[:10]}" if entries else ""
    table = (
        tables.columns(lasting, COLUMNS)
        if lasting
        else "Nothing has changed for good, as far as so many runs can tell."
    )
    return f"# {path.stem}\n\n{len(entries)} runs{period}.\n\n{table}\n"


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
        print("\n".join(report(file, read(file)) for file in files), end="")
    except HistoryError as error:
        print(f"mlcomp: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
