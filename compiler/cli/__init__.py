"""The `mlcomp` command: show a program at any stage, run it, list passes and targets, keep its cache.

Exit status: 0 when all went well, 1 when a program is refused or its result wrong, 2 for a command that makes no sense.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata

from compiler.cli import cache, check, explain, passes, run, show, suite, targets, tune
from compiler.cli.sources import Senseless
from compiler.errors import CompilerError
from compiler.runtime import detect


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in suite.COMMANDS:
        return suite.run(suite.COMMANDS[words[0]][0], words[1:])
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output has seen enough
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except Exception as problem:  # the outermost place: whatever happened becomes one paragraph
        if options.debug:
            raise
        _drop_output()
        return _complain(_said(problem), 2 if isinstance(problem, Senseless) else 1)


def _complain(text: str, status: int) -> int:
    with suppress(BrokenPipeError):
        print(f"mlcomp: {text}", file=sys.stderr)
    return status


def _drop_output() -> None:
    """Print what is left if that is possible; Python would complain about it once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):  # a stream that is no file has no number
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _said(problem: Exception) -> str:
    match problem:
        case CompilerError() | ValueError() | Senseless():
            return str(problem)
        case OSError(strerror=str(reason), filename=str(name)):
            return f"{name}: {reason.lower()}"
        case OSError():
            return (problem.strerror or str(problem)).lower()
    return (
        f"internal error, which is a bug in mlcomp: {type(problem).__name__}: {problem}. "
        "The same command with --debug shows where."
    )


class _Version(argparse.Action):
    """Looks for the versions only when it is asked for them."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        tools = [f"Python {platform.python_version()}", f"torch {_distribution('torch')}"]
        try:
            tools.append(f"g++ {detect.toolchain('g++').version}")
        except CompilerError:
            tools.append("no g++")
        print(f"mlcomp {_distribution('pytest-mlcomp')} ({', '.join(tools)})")
        parser.exit()


def _distribution(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "of no known version"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlcomp", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action=_Version, nargs=0, help="versions of mlcomp and of what it builds on")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shown = commands.add_parser("show", help="print a program at one stage")
    show.options(shown)
    shown.set_defaults(run=show.show)
    ran = commands.add_parser("run", help="compile, run, and compare with PyTorch")
    run.options(ran)
    ran.set_defaults(run=run.run)
    explained = commands.add_parser("explain", help="what torch.compile makes of it: regions, kernels, what is eager")
    explain.options(explained)
    explained.set_defaults(run=explain.explain)
    checked = commands.add_parser("check", help="run an edited CUDA text under the emulator's checks")
    check.options(checked)
    checked.set_defaults(run=check.check)
    tuned = commands.add_parser("tune", help="time schedules of its kernels, and keep the best")
    tune.options(tuned)
    tuned.set_defaults(run=tune.tune)
    for command in (shown, ran, explained, tuned):
        command.add_argument(
            "-c",
            dest="code",
            metavar="EXPRESSION",
            help="an expression over torch, F and nn; torch.randn(..) and its like are the inputs",
        )
    for command in (shown, ran, explained, checked, tuned):
        command.add_argument(
            "--target", help="cpu, the default, is this machine, cuda its GPU; `mlcomp targets` lists all"
        )
        command.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    commands.add_parser("passes", help="list the passes with their invariants").set_defaults(run=passes.passes)
    listed = commands.add_parser("targets", help="list the targets with their instructions")
    targets.options(listed)
    listed.set_defaults(run=targets.targets)
    kept = commands.add_parser("cache", help="show, verify or shrink the folder of compiled kernels")
    cache.options(kept)
    kept.set_defaults(run=cache.cache)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    for name, (_, says) in suite.COMMANDS.items():
        commands.add_parser(name, help=says)
    return parser
