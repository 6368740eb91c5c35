"""Replay recorded tables: how soon each strategy approaches the best time, and how the best is ranked by estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import numpy as np

from compiler.errors import CompilerError
from compiler.execution.tuning import tables
from compiler.execution.tuning.tables import Table
from compiler.schedule import search, steps

SEEDS = 5
MAX_TRIALS = 64  # trials per run
NEAR = 0.95  # of the best speed
BUDGETS = (1, 4, 8, 16, 32, 64)
BATCH = 4
Curves = Mapping[str, np.ndarray]  # strategy -> shares of the best by run and by trial


def read(paths: Sequence[Path]) -> list[Table]:
    """The tables in files and folders. Raises CompilerError if there is none."""
    files = [f for p in paths for f in (sorted(p.glob("*.jsonl*")) if p.is_dir() else [p])]
    read_tables = [t for f in files for t in tables.read_all(f)]
    if not read_tables:
        raise CompilerError(f"there are no tables in {', '.join(map(str, paths))}")
    return read_tables


def recorded(table: Table) -> tuple[list[search.Candidate], list[float]]:
    """The candidates that were tried, and their times relative to the heuristic's schedule."""
    tried = sorted(table.trials)
    schedules = [steps.parse(table.head.schedules[n]) for n in tried]
    return search.candidates([table.head.costs[n] for n in tried], schedules), [table.ratios[n] for n in tried]


def run(candidates: list[search.Candidate], times: Sequence[float], strategy: str, seed: int) -> list[float]:
    """The share of the best speed after each trial; the first trial is the heuristic's schedule."""
    best, ratios, rng = min(times), {0: times[0]}, Random(seed)
    while len(ratios) < min(MAX_TRIALS, len(candidates)):
        chosen = search.STRATEGIES[strategy](candidates, ratios, min(BATCH, MAX_TRIALS - len(ratios)), rng)
        if not chosen:
            break
        ratios |= {n: times[n] for n in chosen}
    shares = [best / t for t in np.minimum.accumulate(list(ratios.values()))]
    return [*shares, *[shares[-1]] * (MAX_TRIALS - len(shares))]


def curves(kernel_tables: Sequence[Table]) -> Curves:
    """Run every strategy on every table with every seed, in the same order."""
    recordings = [recorded(t) for t in kernel_tables]
    return {s: np.array([run(*k, s, seed) for k in recordings for seed in range(SEEDS)]) for s in search.STRATEGIES}


def report(paths: Sequence[Path], folder: Path | None) -> Iterator[Path]:
    """Write a page and a plot of the share of the best speed against the number of trials."""
    kernel_tables = [t for t in read(paths) if t.best is not None and len(t.trials) > 1]
    shares_by_strategy, out = curves(kernel_tables), folder or Path("reports/search")
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("README.md", page(kernel_tables, shares_by_strategy)),
        ("search.svg", picture(shares_by_strategy)),
    ):
        (out / name).write_text(text, encoding="utf-8")
        yield out / name


def page(kernel_tables: Sequence[Table], shares_by_strategy: Curves) -> str:
    """The page in Markdown."""
    head = "| strategy | " + " | ".join(f"after {n}" for n in BUDGETS) + f" | within 16 trials at {NEAR:.0%} |"
    rows = [head, "|" + "---|" * (len(BUDGETS) + 2)]
    for name, shares in shares_by_strategy.items():
        means = " | ".join(f"{shares[:, n - 1].mean():.3f}" for n in BUDGETS)
        near_share = (shares[:, 15] >= NEAR).reshape(len(kernel_tables), SEEDS).mean()
        rows.append(f"| {name}{' (default)' if name == search.DEFAULT else ''} | {means} | {near_share:.0%} of runs |")
    kernel_rows = ["| kernel | device | family | candidates | refused | best over the heuristic | rank of the best |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for t in kernel_tables:
        assert t.best is not None
        failures = sum(bool(x.failed) for x in t.trials.values())
        gain = t.trials[0].ratio / t.best.ratio
        kernel_rows.append(
            f"| {t.head.name} | {t.head.device} | {t.head.family} | {len(t.trials)} | {failures} | {gain:.2f}x "
            f"| {t.best.number} |"
        )
    return "\n".join([
        "# How soon a search finds the best schedule", "",
        f"Recorded times of {len(kernel_tables)} kernels, each strategy with {SEEDS} seeds; the mean share of the best "
        "recorded",
        "speed after so many trials. Tables with fewer candidates than trials are exhausted before.",
        "`mlcomp tune --replay reports/search/tables` writes this page.", "",
        *rows, "", "![trials against the share of the best](search.svg)", "", *kernel_rows, "",
    ])  # fmt: skip


def picture(shares_by_strategy: Curves) -> str:
    """The mean share of the best speed by trials, as SVG."""
    colours = ("#888", "#d62728", "#1f77b4", "#2ca02c", "#9467bd")
    low = min(float(s.mean(axis=0)[0]) for s in shares_by_strategy.values())
    wide, high, left, top = 640, 320, 50, 20
    floor = math.floor(low * 20) / 20

    def x(trial: int) -> float:
        return left + wide * math.log2(trial) / math.log2(MAX_TRIALS)

    def y(share: float) -> float:
        return top + high * (1 - (share - floor) / max(1 - floor, 1e-9))

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + 140}" height="{high + 60}" font-size="12">']
    for n in BUDGETS:
        lines.append(f'<text x="{x(n):.0f}" y="{top + high + 18}" text-anchor="middle">{n}</text>')
    for share in np.linspace(floor, 1, 6):
        lines.append(f'<line x1="{left}" x2="{left + wide}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{y(share) + 4:.0f}" text-anchor="end">{share:.2f}</text>')
    for n, (name, shares) in enumerate(shares_by_strategy.items()):
        mean = shares.mean(axis=0)
        points = " ".join(f"{x(t):.1f},{y(mean[t - 1]):.1f}" for t in range(1, MAX_TRIALS + 1))
        lines.append(f'<polyline fill="none" stroke="{colours[n]}" stroke-width="2" points="{points}"/>')
        lines.append(f'<text x="{left + wide + 8}" y="{top + 16 * n + 12}" fill="{colours[n]}">{name}</text>')
    lines.append(f'<text x="{left + wide / 2:.0f}" y="{top + high + 36}" text-anchor="middle">trials</text></svg>')
    return "\n".join(lines) + "\n"
