"""`mlcomp tune`: time schedules of a program's kernels, store the best, and verify stored ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compiler.cli import suite
from compiler.cli.sources import Senseless, expression_text, loading

EFFORTS = ("quick", "default", "full")
STRATEGIES = ("random", "top", "local", "model", "tree")


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="shape files: tune the kernels of their benchmarks"
    )
    command.add_argument("--only", metavar="REGEX", help="only benchmarks whose id matches this")
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
    with loading():
        from compiler.execution.tuning import command, fit, replay  # noqa: PLC0415

    if options.replay or options.fit:
        for path in replay.report(options.replay, options.out) if options.replay else ():
            print(f"wrote {path}")
        print(fit.report(options.fit) if options.fit else "", end="")
        return 0
    if options.verify:
        return _verify(options.target or "cpu")
    if options.files:
        return suite.run("conformance.bench.tuning", _words(options))
    effort = command.limits(options.effort, options.budget, options.trials)
    tell = _say if options.verbose else lambda _: None
    code = expression_text(options)
    wish = command.Wish(effort, options.strategy or command.STRATEGY, options.seed, tell, code)
    found = command.tune_expression(code, options.target or "cpu", wish)
    print("\n".join(map(str, found)))
    return 130 if any(one.interrupted for one in found) else 1 if any(one.problem for one in found) else 0


def _words(options: argparse.Namespace) -> list[str]:
    """The arguments for the suite, which reads the shape files."""
    if options.code is not None:
        raise Senseless("tune takes shape files or an expression, not both")
    named = {
        name: getattr(options, name) for name in ("target", "only", "effort", "budget", "trials", "strategy", "seed")
    }
    given = [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]
    return [*map(str, options.files), *given, *(["-v"] if options.verbose else [])]


def _verify(target: str) -> int:
    from compiler.execution.tuning import verify  # noqa: PLC0415

    wrong = 0
    for one in verify.verify(target):
        median, low, high = one.speedup
        then = one.record.speedup[0]
        says = (
            one.problem or f"{median:.3f}x [{low:.3f}, {high:.3f}] the heuristic's speed, {then:.3f}x when it was found"
        )
        slower = not one.problem and high < 1
        wrong += bool(one.problem or slower)
        print(f"{one.record.name}: {says}{': tune it again' if one.problem or slower else ''}", flush=True)
    return 1 if wrong else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
