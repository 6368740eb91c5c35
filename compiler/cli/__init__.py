"""The `mlcomp` command: compile, inspect, run, time and bisect PyTorch programs.

Exit status: 0 on success, 1 if a program is refused or its result is wrong, 2 for invalid usage.
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
from compiler.cli.sources import UsageError, add_shared
from compiler.errors import CompilerError
from compiler.runtime import detect


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, *rest = [word for word in words if word != "--debug"] or [""]
    if command in suite.COMMANDS:  # these show the traceback of an unexpected error in any case
        return suite.run(suite.COMMANDS[command][0], rest)
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
        return _print_error("interrupted", 130)
    except Exception as problem:  # the outermost handler: any error is printed as one paragraph
        if options.debug:
            raise
        _drop_output()
        return _print_error(_message_of(problem), 2 if isinstance(problem, UsageError) else 1)


def _print_error(text: str, status: int) -> int:
    with suppress(BrokenPipeError):
        print(f"mlcomp: {text}", file=sys.stderr)
    return status


def _drop_output() -> None:
    """Flush the output if possible; otherwise drop it, or Python would report the error again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):  # a stream that is not a file has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message_of(problem: Exception) -> str:
    match problem:
        case CompilerError() | ValueError() | UsageError():
            return str(problem)
        case OSError(strerror=str(reason), filename=str(name)):
            return f"{name}: {reason.lower()}"
        case OSError():
            return (problem.strerror or str(problem)).lower()
    return (
        f"internal error, which is a bug in mlcomp: {type(problem).__name__}: {problem}. "
        "Run the same command with --debug to see where."
    )


class _Version(argparse.Action):
    """Looks up the versions only if they are asked for."""

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
        return "(unknown version)"


_RANDOM = ("--target", "--seed")
_PROGRAM = ("-c", *_RANDOM)
# Per command: its name, its own options, its function, the options that it shares with others, and its help.
_COMMANDS: tuple[tuple[str, Callable[..., None], Callable[..., int], tuple[str, ...], str], ...] = (
    ("show", show.options, show.show, _PROGRAM, "print a program at one stage, or the changes that the passes make"),
    ("run", run.options, run.run, _PROGRAM, "compile and run a program, and compare the result with PyTorch"),
    ("explain", explain.options, explain.explain, _PROGRAM,
     "show the compiled regions, kernels and eager calls that torch.compile makes of a program"),
    ("check", check.options, check.check, _RANDOM, "run a CUDA text under the emulator's checks"),
    ("tune", tune.options, tune.tune, _PROGRAM, "time schedules of a program's kernels, and store the best"),
    ("passes", lambda _: None, targets.passes, (), "list the passes with their invariants"),
    ("targets", targets.options, targets.targets, (), "list the targets with their features and tensor instructions"),
    ("cache", cache.options, cache.cache, (), "show, verify, prune or clear the cache of compiled kernels"),
)  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlcomp", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the versions of mlcomp, Python, torch and g++"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, options, command_function, shared, help_text in _COMMANDS:
        command = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        options(command)
        add_shared(command, *shared)
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        command.set_defaults(run=command_function)
    for name, (_, help_text) in suite.COMMANDS.items():
        commands.add_parser(name, help=help_text)
    return parser
