"""`mlcomp explain FILE …`: the memory of benchmarks' temporaries as planned, against lower bounds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import compiler
from conformance.judge import subject
from conformance.shapes.cases import TIERS, BenchCase, runs_on
from conformance.shapes.files import ShapeFileError, benches, load, shape_files


def plan_memory(case: BenchCase, target: compiler.Target) -> compiler.MemorySchedule:
    """Return the memory plan of a benchmark's temporaries; its weights are left blank."""
    lowering = compiler.lower(subject.prepare(case, 0, blank=True).program, target, until="kernel")
    return compiler.memory_schedule(lowering, {})


def table_lines(cases: Sequence[BenchCase], target: compiler.Target) -> Iterator[str]:
    """Yield a table in bytes: the planned peak; the most that is live at once in this order of kernels; a lower bound
    for any order; then the peak over each of these two, and the benchmark."""
    yield f"{'peak':>12} {'alive':>12} {'any order':>12} {'':>5} {'':>5}"
    for case in cases:
        try:
            plan = plan_memory(case, target)
        except compiler.CompilerError as problem:
            yield f"{case.id}: {problem}"
            continue
        sizes = plan.arena.size, plan.least, plan.unavoidable
        ratios = [plan.arena.size / size if size else 1.0 for size in sizes[1:]]
        yield f"{' '.join(f'{n:>12}' for n in sizes)} {' '.join(f'{x:>5.2f}' for x in ratios)} {case.id}"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mlcomp explain")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--memory-limit", type=int, default=0)
    options = parser.parse_args(words)
    try:
        cases = [case for path in shape_files(options.files) for case in benches(load(path, TIERS[-1]), TIERS[-1])]
    except ShapeFileError as problem:
        parser.error(str(problem))
    target = compiler.target(options.target)
    for line in table_lines(
        [c for c in cases if runs_on(c, options.target)], target.replace(memory=options.memory_limit)
    ):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
