"""Measure the false alarms and the statistical power of the rule for stored kernels (`stored.py`) on this machine.

    python -m conformance.bench.power record FILE.npz [SHAPES …] [--races N] [--first N] [--target T]
    python -m conformance.bench.power judge FILE.npz [--runs N] [--effect 0.03]

A twin of a kernel is the same text, built and loaded a second time in the way that a stored kernel is. `record` races
the kernel of each benchmark against N twins, one after the other, with the protocol of `--mlcomp-bench quick` for
stored kernels and without stopping early. `judge` composes runs from these races; a run has one race of every kernel
and is judged as a benchmark run is. First it judges the recorded runs (run n has the n-th race of each kernel), then
`--runs` runs resampled from the recorded races in blocks of rounds, since a disturbance lasts longer than a round. A
planted slowdown multiplies the times of one random kernel of a run; each of PLANTED is planted in turn.
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
from conformance.rows import BASELINE, OURS, Against
from conformance.shapes.cases import BenchCase
from conformance.shapes.files import below, benches, find_shapes, load

Logs = NDArray[np.float64]  # log of our time over the twin's, a row for each race and a column for each round
BLOCK = 8  # number of neighbouring rounds that are resampled together
PLANTED = (0.03, 0.05, 0.10, -0.10)


def record(cases: Sequence[BenchCase], races: int, target: str, file: Path) -> None:
    """Write the log ratios of the races to the file, with the key "benchmark-id number-of-looks"."""
    found: dict[str, Logs] = {}
    for case in cases:
        settings = benchmark.Settings(target=target)
        try:
            with torch.no_grad(), benchmark.kept_memory(), ladder.threads(1):
                rows, looks = _races(case, settings, races)
        except Exception as error:  # for example an unsupported op
            print(f"{case.id} left out: {type(error).__name__}: {error}"[:200], file=sys.stderr)
            continue
        found[f"{case.id} {looks}"] = rows
        np.savez(file, **found)  # type: ignore[arg-type]
        bias = 100 * np.median(rows, axis=1)
        print(f"{case.id}: {rows.shape[1]} rounds, medians {bias.min():+.2f} % to {bias.max():+.2f} %", file=sys.stderr)


def _races(case: BenchCase, settings: benchmark.Settings, races: int) -> tuple[Logs, int]:
    subject = benchmark.prepare(case, 0, settings.where)
    ours = systems.build(systems.OURS, subject.function, subject.inputs, settings.target)
    text, headers = ours.call.source, compiler.headers(ours.call.code.target)  # type: ignore[attr-defined]
    clock = None if settings.clock_name == "device" else time.thread_time_ns
    protocol = stored.longer(settings.protocol)
    found = []
    for n in range(races):
        twin = emitted.self_contained(f"{text}\nstruct mlcomp_twin{n};\n", headers)
        then = compiler.rebuild(ours.call, twin)  # type: ignore[arg-type]
        both: dict[str, Callable[..., object]] = {OURS: ours.call, BASELINE: then}
        found.append(stored.race(both, subject.inputs, clock, n, protocol))
    rounds = min(samples.rounds for samples in found)
    logs = [np.log(samples.of(OURS)[:rounds] / samples.of(BASELINE)[:rounds]) for samples in found]
    return np.array(logs), found[0].looks


def judged(logs: Sequence[float] | Logs, looks: int, effect: float) -> Against:
    """Judge the log ratios of one race, stopped at the first look at which the rule decides."""
    whole = np.exp(np.stack([np.asarray(logs), np.zeros(len(logs))], axis=1))
    for look in (*stored.LOOKS[: looks - 1], len(logs)):
        samples = Samples((OURS, BASELINE), whole[:look], (1, 1), looks)
        if stored.decided(samples, effect):
            break
    return stored.judge(samples, Against(), effect)


def drawn(rows: Logs, rng: np.random.Generator) -> Logs:
    """Resample one of the races, chosen at random, in blocks of BLOCK rounds; the result has as many rounds."""
    race: Logs = rows[rng.integers(len(rows))]
    starts = rng.integers(0, len(race), -(-len(race) // BLOCK))
    places = (starts[:, None] + np.arange(BLOCK)).ravel()[: len(race)]
    found: Logs = race[places % len(race)]
    return found


def verdicts(found: Sequence[Against]) -> list[str]:
    """Return the verdicts of a run; SLOWER becomes AMBIGUOUS if it fails the correction for multiple tests."""
    stands = duel.discoveries([one.chance or 0.0 for one in found])
    return [
        one.verdict if one.verdict != Verdict.SLOWER or n in stands else str(Verdict.AMBIGUOUS)
        for n, one in enumerate(found)
    ]


def judge(races: dict[str, Logs], runs: int, effect: float) -> list[str]:
    """Return a line for each kind of run: the counts of verdicts on twins and on kernels with a planted slowdown."""
    kernels = [(rows, int(key.rpartition(" ")[2])) for key, rows in races.items()]
    rng = np.random.default_rng(0)
    real = min(len(rows) for rows, _ in kernels)
    lines = [f"{len(kernels)} kernels; least effect {effect:.1%}, bar {stored.bar(effect):.2%}"]
    twins = [[judged(rows[n], looks, effect) for rows, looks in kernels] for n in range(real)]
    lines.append(f"twins, {real} runs as they were: {_counted([v for run in twins for v in verdicts(run)])}")
    said: Counter[str] = Counter()
    alarmed, found = 0, {planted: Counter[str]() for planted in PLANTED}
    for _ in range(runs):
        logs = [drawn(rows, rng) for rows, _ in kernels]
        run = [judged(some, looks, effect) for some, (_, looks) in zip(logs, kernels, strict=True)]
        said.update(now := verdicts(run))
        alarmed += str(Verdict.SLOWER) in now
        at = int(rng.integers(len(kernels)))
        for planted, counted in found.items():
            one = judged(logs[at] + math.log1p(planted), kernels[at][1], effect)
            counted[verdicts([*run[:at], one, *run[at + 1 :]])[at]] += 1
    lines.append(f"twins, {runs} runs drawn: {_counted(said.elements())}; {alarmed} runs with an alarm")
    lines += [f"planted {planted:+.0%}, {runs} runs drawn: {_counted(c.elements())}" for planted, c in found.items()]
    return lines


def _counted(said: Iterable[str]) -> str:
    counted = Counter(said)
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
    given = parser.parse_args(words)
    if given.what == "record":
        files = below(given.shapes or [find_shapes() / "ops"])
        cases = [case for file in files for case in benches(load(file, "smoke"), "smoke")]
        record(cases[:: -(-len(cases) // given.first)], given.races, given.target, given.file)
        return 0
    with np.load(given.file) as held:
        print("\n".join(judge({key: held[key] for key in held.files}, given.runs, given.effect)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
