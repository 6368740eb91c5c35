"""`mlcomp tune FILE …`: search for the fastest schedules of benchmarks' kernels and store them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import compiler
from conformance.judge import subject
from conformance.shapes.cases import TIERS, BenchCase, runs_on
from conformance.shapes.files import ShapeFileError, below, benches, load


def chosen(files: Sequence[Path], target: str, only: str) -> list[BenchCase]:
    """Return the benchmarks of shape files that run on the target and whose id contains a match of `only`."""
    cases = [case for path in below(files) for case in benches(load(path, TIERS[-1]), TIERS[-1])]
    return [case for case in cases if runs_on(case, target) and re.search(only, case.id)]


def programs(cases: Sequence[BenchCase], seed: int) -> Iterator[tuple[Any, list[torch.Tensor]]]:
    """Yield the program and inputs of each benchmark; one that cannot be captured is reported on stderr and skipped."""
    for number, case in enumerate(cases, 1):
        print(f"{number} of {len(cases)}: {case.id}", file=sys.stderr, flush=True)
        try:
            made = subject.prepare(case, seed)
        except Exception as problem:  # torch may raise anything during capture
            print(f"{case.id}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            continue
        yield made.program, list(made.tensors)


def main(words: Sequence[str]) -> int:
    """Run the search; returns 0 if all went well, 1 if a kernel has a problem, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="mlcomp tune")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--only", default="")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--effort", default="default")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--strategy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-v", dest="verbose", action="store_true")
    given = parser.parse_args(words)
    try:
        cases = chosen(given.files, given.target, given.only)
    except (ShapeFileError, re.error) as problem:
        parser.error(str(problem))
    if not cases:
        parser.error(f"no benchmark of these files is for {given.target} and has {given.only!r} in its id")
    wish = compiler.Wish(
        compiler.limits(given.effort, given.budget, given.trials),
        seed=given.seed,
        tell=(lambda text: print(text, file=sys.stderr, flush=True)) if given.verbose else lambda _: None,
        **({"strategy": given.strategy} if given.strategy else {}),
    )
    status = 0
    try:
        with torch.no_grad():
            for found in compiler.tune(programs(cases, given.seed), compiler.target(given.target), wish):
                print(found, flush=True)
                status = 130 if found.interrupted else status or int(bool(found.problem))
    except compiler.CompilerError as problem:
        print(f"mlcomp tune: {problem}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
