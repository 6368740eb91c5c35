"""Measure the cost of data checks (indices, targets, divisors): the time with checks over the time without.

    python -m conformance.bench.checks [FILE …] [--only REGEX] [--target TARGET …] [--bar 0.03]

Both texts are built by the same compiler and race in one process on one thread, round by round, on alternating copies
of the operands. Programs without data checks have equal texts and are left out. The default file is `checks.toml`
beside this module, which has a benchmark for each family of ops that takes indices, targets or integer divisors.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

import compiler
from conformance.bench import benchmark, duel, stored, tuning
from conformance.bench.duel import Samples
from conformance.judge import ladder, subject
from conformance.rows import BASELINE, OURS
from conformance.shapes.cases import BenchCase

FAMILIES = Path(__file__).with_suffix(".toml")
BAR = 0.03


def cost(case: BenchCase, target: str, bar: float, seconds: float, seed: int) -> duel.Ratio | None:
    """Return the time with checks over that without, raced until decided against the bar; None for equal texts."""
    prepared = subject.prepare(case, seed)
    checked, unchecked = (_compile(prepared, target, check_indices) for check_indices in ("async", "off"))
    if checked.source == unchecked.source:
        return None
    calls = {OURS: checked, BASELINE: unchecked}
    protocol = replace(stored.longer_protocol(duel.QUICK), budget_ns=int(seconds * 1e9))
    samples = stored.race(
        calls,
        prepared.arguments,
        time.thread_time_ns,
        seed,
        protocol,
        lambda raced: side_of_bar(_ratio(raced), bar) != "?",
    )
    return _ratio(samples)


def _compile(prepared: subject.Subject, target: str, check_indices: str) -> compiler.Executable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", compiler.UncheckedWarning)
        return compiler.compile(prepared.captured, target=target, threads=1, check_indices=check_indices)


def _ratio(samples: Samples) -> duel.Ratio:
    return duel.ratio(samples, OURS, BASELINE)


def side_of_bar(ratio: duel.Ratio, bar: float) -> str:
    """Say on which side of the bar the whole interval lies, or "?" if it contains the bar.

    >>> [side_of_bar(duel.Ratio(1.03, *ends, 60, 0.99), 0.03) for ends in ((1.0, 1.02), (1.05, 1.1), (1.01, 1.05))]
    ['within', 'over', '?']
    """
    return "within" if ratio.high <= 1 + bar else "over" if ratio.low > 1 + bar else "?"


def main(words: Sequence[str]) -> int:
    """Race the benchmarks and print a line for each; returns 1 if the checks of any significantly exceed the bar."""
    parser = argparse.ArgumentParser(prog="python -m conformance.bench.checks")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--only", default="", help="benchmarks whose id has this regular expression")
    parser.add_argument("--target", action="append", help="may be given several times (default: cpu and cpu:avx2)")
    parser.add_argument("--bar", type=float, default=BAR, help="the share that checks may cost (default: 0.03)")
    parser.add_argument("--seconds", type=float, default=12, help="that a race lasts at most (default: 12)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    targets = options.target or ["cpu", *(name for name in compiler.cpus() if name == "cpu:avx2")]
    exceeds_bar = False
    for target in targets:
        for case in tuning.select_benchmarks(options.files or [FAMILIES], target, options.only):
            with torch.no_grad(), benchmark.reuse_memory(), ladder.threads(1):
                ratio = cost(case, target, options.bar, options.seconds, options.seed)
            if ratio is not None:
                side = side_of_bar(ratio, options.bar)
                exceeds_bar = exceeds_bar or side == "over"
                interval = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
                print(f"{interval} {side:6} {target:10} {case.id}, {ratio.rounds} rounds", flush=True)
    return int(exceeds_bar)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
