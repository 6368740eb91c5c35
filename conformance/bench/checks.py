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
    made = subject.prepare(case, seed)
    checked, unchecked = (_built(made, target, how) for how in ("async", "off"))
    if checked.source == unchecked.source:
        return None
    both = {OURS: checked, BASELINE: unchecked}
    protocol = replace(stored.longer(duel.QUICK), budget_ns=int(seconds * 1e9))
    samples = stored.race(
        both, made.arguments, time.thread_time_ns, seed, protocol, lambda found: said(_ratio(found), bar) != "?"
    )
    return _ratio(samples)


def _built(made: subject.Subject, target: str, how: str) -> compiler.Executable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", compiler.UncheckedWarning)
        return compiler.compile(made.captured, target=target, threads=1, check_indices=how)


def _ratio(samples: Samples) -> duel.Ratio:
    return duel.ratio(samples, OURS, BASELINE)


def said(found: duel.Ratio, bar: float) -> str:
    """Say on which side of the bar the whole interval lies, or "?" if it contains the bar.

    >>> [said(duel.Ratio(1.03, *ends, 60, 0.99), 0.03) for ends in ((1.0, 1.02), (1.05, 1.1), (1.01, 1.05))]
    ['within', 'over', '?']
    """
    return "within" if found.high <= 1 + bar else "over" if found.low > 1 + bar else "?"


def main(words: Sequence[str]) -> int:
    """Race the benchmarks and print a line for each; returns 1 if the checks of any significantly exceed the bar."""
    parser = argparse.ArgumentParser(prog="python -m conformance.bench.checks")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--only", default="", help="benchmarks whose id has this regular expression")
    parser.add_argument("--target", action="append", help="may be given several times (default: cpu and cpu:avx2)")
    parser.add_argument("--bar", type=float, default=BAR, help="the share that checks may cost (default: 0.03)")
    parser.add_argument("--seconds", type=float, default=12, help="that a race lasts at most (default: 12)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    targets = given.target or ["cpu", *(name for name in compiler.cpus() if name == "cpu:avx2")]
    over = False
    for target in targets:
        for case in tuning.chosen(given.files or [FAMILIES], target, given.only):
            with torch.no_grad(), benchmark.kept_memory(), ladder.threads(1):
                found = cost(case, target, given.bar, given.seconds, given.seed)
            if found is not None:
                where = said(found, given.bar)
                over = over or where == "over"
                interval = f"{found.median:.3f} [{found.low:.3f}, {found.high:.3f}]"
                print(f"{interval} {where:6} {target:10} {case.id}, {found.rounds} rounds", flush=True)
    return int(over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
