"""Measure the false alarms and the statistical power of the rule for stored kernels (`stored.py`) on this machine.

    python -m conformance.bench.power record FILE.npz [SHAPES …] [--races N] [--first N] [--target T]
    python -m conformance.bench.power judge FILE.npz [--runs N] [--effect 0.03]

A twin of a kernel is the same text, built and loaded a second time in the way that a stored kernel is. `record` races
the kernel of each benchmark against N twins, one after the other, with the protocol of `--mlcomp-bench quick` for
stored kernels and without stopping early. `judge` composes runs from these races; a run has one race of every kernel,
and another one where a verdict is confirmed, and is judged as a benchmark run is. First it judges the recorded runs
(run n has the n-th race of each kernel, confirmed by the one before), then `--runs` runs resampled from the recorded
races in blocks of rounds, since a disturbance lasts longer than a round. A planted slowdown multiplies the times of one
random kernel of a run; each of PLANTED_SLOWDOWNS is planted in turn.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import compiler
from conformance.bench import benchmark, duel, emitted, stored
from conformance.bench.duel import Samples, Verdict
from conformance.judge import ladder, systems
from conformance.rows import BASELINE, OURS, BaselineComparison
from conformance.shapes.cases import BenchCase
from conformance.shapes.files import benches, find_shapes, load, shape_files

Logs = NDArray[np.float64]  # log of our time over the twin's, a row for each race and a column for each round
BLOCK = 8  # number of neighbouring rounds that are resampled together
PLANTED_SLOWDOWNS = (0.03, 0.05, 0.10, -0.10)


def record(cases: Sequence[BenchCase], races: int, target: str, file: Path) -> None:
    """Write the log ratios of the races to the file, with the key "benchmark-id number-of-looks"."""
    logs_by_key: dict[str, Logs] = {}
    for case in cases:
        settings = benchmark.Settings(target=target)
        try:
            with torch.no_grad(), benchmark.reuse_memory(), ladder.threads(1):
                rows, looks = _races(case, settings, races)
        except Exception as error:  # for example an unsupported op
            print(f"{case.id} left out: {type(error).__name__}: {error}"[:200], file=sys.stderr)
            continue
        logs_by_key[f"{case.id} {looks}"] = rows
        np.savez(file, **logs_by_key)  # type: ignore[arg-type]
        bias = 100 * np.median(rows, axis=1)
        print(f"{case.id}: {rows.shape[1]} rounds, medians {bias.min():+.2f} % to {bias.max():+.2f} %", file=sys.stderr)


def _races(case: BenchCase, settings: benchmark.Settings, races: int) -> tuple[Logs, int]:
    subject = benchmark.prepare(case, 0, settings.where)
    ours = systems.build(systems.OURS, subject.function, subject.inputs, settings.target)
    text, headers = ours.call.source, compiler.headers(ours.call.code.target)  # type: ignore[attr-defined]
    clock = None if settings.clock_name == "device" else time.thread_time_ns
    protocol = stored.longer_protocol(settings.protocol)
    results = []
    for n in range(races):
        twin = emitted.self_contained(f"{text}\nstruct mlcomp_twin{n};\n", headers)
        twin_call = compiler.rebuild(ours.call, twin)  # type: ignore[arg-type]
        calls: dict[str, Callable[..., object]] = {OURS: ours.call, BASELINE: twin_call}
        results.append(stored.race(calls, subject.inputs, clock, n, protocol))
    rounds = min(samples.rounds for samples in results)
    logs = [np.log(samples.times_of(OURS)[:rounds] / samples.times_of(BASELINE)[:rounds]) for samples in results]
    return np.array(logs), results[0].looks


def judge_race(logs: Sequence[float] | Logs, looks: int, effect: float) -> BaselineComparison:
    """Judge the log ratios of one race, stopped at the first look at which the rule decides."""
    times = np.exp(np.stack([np.asarray(logs), np.zeros(len(logs))], axis=1))
    for look in (*stored.LOOKS[: looks - 1], len(logs)):
        samples = Samples((OURS, BASELINE), times[:look], (1, 1), looks)
        if stored.is_race_decided(samples, effect):
            break
    return stored.judge(samples, BaselineComparison(), effect)


def judge_kernel(race: Logs, another: Logs, looks: int, effect: float) -> BaselineComparison:
    """Judge a race as a benchmark run does, which confirms some verdicts by another race."""
    first = judge_race(race, looks, effect)
    return stored.confirm(first, judge_race(another, looks, effect)) if first.verdict in stored.TO_CONFIRM else first


def resample(rows: Logs, rng: np.random.Generator) -> Logs:
    """Resample one of the races, chosen at random, in blocks of BLOCK rounds; the result has as many rounds."""
    race: Logs = rows[rng.integers(len(rows))]
    starts = rng.integers(0, len(race), -(-len(race) // BLOCK))
    positions = (starts[:, None] + np.arange(BLOCK)).ravel()[: len(race)]
    resampled: Logs = race[positions % len(race)]
    return resampled


def verdicts(rows: Sequence[BaselineComparison]) -> list[str]:
    """Return the verdicts of a run; SLOWER becomes AMBIGUOUS if it fails the correction for multiple tests."""
    significant = duel.discoveries([row.chance or 0.0 for row in rows])
    return [
        row.verdict if row.verdict != Verdict.SLOWER or n in significant else str(Verdict.AMBIGUOUS)
        for n, row in enumerate(rows)
    ]


def judge(races: dict[str, Logs], runs: int, effect: float) -> list[str]:
    """Return a line for each kind of run: the counts of verdicts on twins and on kernels with a planted slowdown."""
    kernels = [(rows, int(key.rpartition(" ")[2])) for key, rows in races.items()]
    rng = np.random.default_rng(0)
    recorded = min(len(rows) for rows, _ in kernels)
    lines = [f"{len(kernels)} kernels; least effect {effect:.1%}, bar {stored.threshold(effect):.2%}"]
    twins = [[judge_kernel(rows[n], rows[n - 1], looks, effect) for rows, looks in kernels] for n in range(recorded)]
    lines.append(f"twins, {recorded} runs as they were: {_show_counts([v for run in twins for v in verdicts(run)])}")
    counts: Counter[str] = Counter()
    alarmed, planted_counts = 0, {planted: Counter[str]() for planted in PLANTED_SLOWDOWNS}
    for _ in range(runs):
        logs = [resample(rows, rng) for rows, _ in kernels]
        run = [
            judge_kernel(race_logs, resample(rows, rng), looks, effect)
            for race_logs, (rows, looks) in zip(logs, kernels, strict=True)
        ]
        counts.update(run_verdicts := verdicts(run))
        alarmed += str(Verdict.SLOWER) in run_verdicts
        kernel = int(rng.integers(len(kernels)))
        rows, looks = kernels[kernel]
        for planted, verdict_counts in planted_counts.items():
            slowdown = math.log1p(planted)
            slowed = judge_kernel(logs[kernel] + slowdown, resample(rows, rng) + slowdown, looks, effect)
            verdict_counts[verdicts([*run[:kernel], slowed, *run[kernel + 1 :]])[kernel]] += 1
    lines.append(f"twins, {runs} runs drawn: {_show_counts(counts.elements())}; {alarmed} runs with an alarm")
    lines += [
        f"planted {planted:+.0%}, {runs} runs drawn: {_show_counts(c.elements())}"
        for planted, c in planted_counts.items()
    ]
    return lines


def _show_counts(names: Iterable[str]) -> str:
    counted = Counter(names)
    return ", ".join(f"{n} {verdict} ({n / counted.total():.1%})" for verdict, n in sorted(counted.items()))


def main(words: Sequence[str]) -> int:
    """Run the command `record` or `judge`."""
    parser = argparse.ArgumentParser(prog="python -m conformance.bench.power")
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("file", type=Path)
    parser.add_argument("shapes", nargs="*", type=Path)
    parser.add_argument("--races", type=int, default=10, help="races of each kernel (default: 10)")
    parser.add_argument("--first", type=int, default=10**6, help="use only this many of the benchmarks, evenly spaced")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--runs", type=int, default=200, help="number of runs to draw (default: 200)")
    parser.add_argument(
        "--effect",
        type=float,
        default=0.03,
        help="smallest slowdown to detect, see --mlcomp-min-effect (default: 0.03)",
    )
    options = parser.parse_args(words)
    if options.what == "record":
        files = shape_files(options.shapes or [find_shapes() / "ops"])
        cases = [case for file in files for case in benches(load(file, "smoke"), "smoke")]
        record(cases[:: -(-len(cases) // options.first)], options.races, options.target, options.file)
        return 0
    with np.load(options.file) as arrays:
        print("\n".join(judge({key: arrays[key] for key in arrays.files}, options.runs, options.effect)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
