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
from conformance.shapes.files import benches, load, shape_files
from conformance.shapes.redraw import redrawn


def select_benchmarks(
    files: Sequence[Path], target: str, only: str, redraw: int | None = None, seed: int = 0
) -> list[BenchCase]:
    """Return the benchmarks of shape files that run on the target and whose id contains a match of `only`.

    With `redraw`, each case has so many random sizes around its own instead, which the seed draws.
    """
    drawn = [redrawn(load(path, TIERS[-1]), redraw, seed) for path in shape_files(files)]
    cases = [case for file in drawn for case in benches(file, TIERS[-1])]
    return [case for case in cases if runs_on(case, target) and re.search(only, case.id)]


def programs(cases: Sequence[BenchCase], seed: int) -> Iterator[tuple[Any, list[torch.Tensor]]]:
    """Yield the program and inputs of each benchmark; one that cannot be captured is reported on stderr and skipped."""
    for number, case in enumerate(cases, 1):
        print(f"{number} of {len(cases)}: {case.id}", file=sys.stderr, flush=True)
        try:
            prepared = subject.prepare(case, seed)
        except Exception as problem:  # torch may raise anything during capture
            print(f"{case.id}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            continue
        yield prepared.program, list(prepared.tensors)


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
    parser.add_argument("--redraw", type=int)
    parser.add_argument("-v", dest="verbose", action="store_true")
    options = parser.parse_args(words)
    try:
        effort = compiler.limits(options.effort, options.budget, options.trials)
        cases = select_benchmarks(options.files, options.target, options.only, options.redraw, options.seed)
    except (ValueError, re.error) as problem:  # also of shape files
        parser.error(str(problem))
    if not cases:
        parser.error(f"no benchmark of these files is for {options.target} and has {options.only!r} in its id")
    request = compiler.Wish(
        effort,
        seed=options.seed,
        tell=(lambda text: print(text, file=sys.stderr, flush=True)) if options.verbose else lambda _: None,
        **({"strategy": options.strategy} if options.strategy else {}),
    )
    status = 0
    try:
        with torch.no_grad():
            for result in compiler.tune(programs(cases, options.seed), compiler.target(options.target), request):
                print(result, flush=True)
                status = 130 if result.interrupted else status or int(bool(result.problem))
    except compiler.CompilerError as problem:
        print(f"mlcomp tune: {problem}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
