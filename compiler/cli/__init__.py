"""The `mlcomp` command: show a program at any stage, run it, list passes and targets, keep its cache.

Exit status: 0 when all went well, 1 when a program is refused or its result wrong, 2 for a command that makes no sense.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata

from compiler.cli import cache, check, explain, run, show, suite, targets, tune
from compiler.cli.sources import Senseless, add_shared
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


_RANDOM = ("--target", "--seed")
_PROGRAM = ("-c", *_RANDOM)
# By name: its own options, what it does, the options that it shares with others, and what that is in words.
_COMMANDS: tuple[tuple[str, Callable[..., None], Callable[..., int], tuple[str, ...], str], ...] = (
    ("show", show.options, show.show, _PROGRAM, "print a program at one stage"),
    ("run", run.options, run.run, _PROGRAM, "compile, run, and compare with PyTorch"),
    ("explain", explain.options, explain.explain, _PROGRAM,
     "what torch.compile makes of it: regions, kernels, what is eager"),
    ("check", check.options, check.check, _RANDOM, "run an edited CUDA text under the emulator's checks"),
    ("tune", tune.options, tune.tune, _PROGRAM, "time schedules of its kernels, and keep the best"),
    ("passes", lambda _: None, targets.passes, (), "list the passes with their invariants"),
    ("targets", targets.options, targets.targets, (), "list the targets with their instructions"),
    ("cache", cache.options, cache.cache, (), "show, verify or shrink the folder of compiled kernels"),
)  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlcomp", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action=_Version, nargs=0, help="versions of mlcomp and of what it builds on")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, options, run_it, shared, says in _COMMANDS:
        command = commands.add_parser(name, help=says)
        options(command)
        add_shared(command, *shared)
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        command.set_defaults(run=run_it)
    for name, (_, says) in suite.COMMANDS.items():
        commands.add_parser(name, help=says)
    return parser
