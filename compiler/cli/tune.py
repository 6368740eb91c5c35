"""`mlcomp tune`: time schedules of a program's kernels, store the best, and verify stored ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compiler.cli import suite
from compiler.cli.sources import UsageError, check_above_zero, expression_text, interruptible_import

EFFORTS = ("quick", "default", "full")
STRATEGIES = ("random", "top", "local", "model", "tree")


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="shape files: tune the kernels of their benchmarks"
    )
    command.add_argument("--only", metavar="REGEX", help="only benchmarks whose id matches this")
    command.add_argument(
        "--redraw",
        type=int,
        metavar="N",
        help="shape files: tune for N random sizes per case around its own instead, drawn by the seed",
    )
    command.add_argument(
        "-v", dest="verbose", action="store_true", help="print the best schedule found so far during the search"
    )
    command.add_argument(
        "--effort",
        choices=EFFORTS,
        default="default",
        help="limits per kernel: 16, 64 or 600 trials, and 10, 60 or 600 s",
    )
    command.add_argument("--budget", type=float, metavar="SECONDS", help="time limit per kernel, instead of --effort's")
    command.add_argument("--trials", type=int, metavar="N", help="trials per kernel, instead of --effort's")
    command.add_argument("--strategy", choices=STRATEGIES, help="how the next schedules to time are chosen")
    command.add_argument(
        "--verify", action="store_true", help="time every stored schedule of the target again and report slower ones"
    )
    command.add_argument(
        "--replay", type=Path, nargs="+", metavar="TABLE", help="compare strategies on recorded tables"
    )
    command.add_argument(
        "--fit",
        type=Path,
        nargs="+",
        metavar="TABLE",
        help="fit the cost model to recorded tables and report its error",
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where --replay writes its report")


def tune(options: argparse.Namespace) -> int:
    with interruptible_import():
        from compiler.execution.tuning import command, fit, replay  # noqa: PLC0415

    if options.replay or options.fit:
        for path in replay.report(options.replay, options.out) if options.replay else ():
            print(f"wrote {path}")
        print(fit.report(options.fit) if options.fit else "", end="")
        return 0
    if options.verify:
        return _verify(options.target or "cpu")
    check_above_zero("--redraw", options.redraw, "remove the option to tune for the sizes of the files")
    try:
        effort = command.limits(options.effort, options.budget, options.trials)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if options.files:
        return suite.run("conformance.bench.tuning", _suite_arguments(options))
    for option in ("only", "redraw"):
        if getattr(options, option) is not None:
            raise UsageError(f"--{option}: an expression has no benchmarks; name shape files, or remove the option")
    report_progress = _print_progress if options.verbose else lambda _: None
    code = expression_text(options)
    request = command.Wish(effort, options.strategy or command.STRATEGY, options.seed, report_progress, code)
    results = command.tune_expression(code, options.target or "cpu", request)
    print("\n".join(map(str, results)))
    return (
        130 if any(result.interrupted for result in results) else 1 if any(result.problem for result in results) else 0
    )


def _suite_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments for the suite, which reads the shape files."""
    if options.code is not None:
        raise UsageError("tune takes shape files or an expression, not both")
    values = {
        name: getattr(options, name)
        for name in ("target", "only", "effort", "budget", "trials", "strategy", "seed", "redraw")
    }
    arguments = [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]
    return [*map(str, options.files), *arguments, *(["-v"] if options.verbose else [])]


def _verify(target: str) -> int:
    from compiler.execution.tuning import verify  # noqa: PLC0415

    worse_count = 0
    for result in verify.verify(target):
        median, low, high = result.speedup
        stored_speedup = result.record.speedup[0]
        message = (
            result.problem
            or f"{median:.3f}x [{low:.3f}, {high:.3f}] the heuristic's speed, {stored_speedup:.3f}x when it was found"
        )
        slower = not result.problem and high < 1
        worse_count += bool(result.problem or slower)
        print(f"{result.record.name}: {message}{': tune it again' if result.problem or slower else ''}", flush=True)
    return 1 if worse_count else 0


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
