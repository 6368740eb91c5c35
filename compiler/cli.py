"""The `mlcomp` command: show a program at any stage, run it, list the passes and the targets.

Exit status: 0 when all went well, 1 when a program is refused or its result wrong, 2 for a command that makes no sense.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import CompilerError

if TYPE_CHECKING:
    from compiler.pipeline import Application

_SHOWN = ("torch", "tensor", "loop", "tile", "kernel", "cpp", "asm")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output has seen enough
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("mlcomp: interrupted", file=sys.stderr)
        return 130
    except (CompilerError, ValueError, KeyError, OSError) as problem:
        if options.debug:
            raise
        print(f"mlcomp: {_said(problem)}", file=sys.stderr)
        return 1


def _said(problem: Exception) -> str:
    return str(problem.args[0]) if isinstance(problem, KeyError) and problem.args else str(problem)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlcomp", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="print a program at one stage")
    show.add_argument("--ir", choices=_SHOWN, default="tile", help="the stage to print (default: tile)")
    show.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="start from an edited text: FILE.torch, .tensor, .loop, .tile or .kernel",
    )
    show.add_argument(
        "--schedule",
        type=Path,
        metavar="FILE",
        help="steps to apply instead of the heuristic's, for a program of one kernel",
    )
    show.add_argument(
        "-v",
        action="count",
        default=0,
        dest="verbose",
        help="-v: passes with their times; -vv: every application as a diff",
    )
    show.set_defaults(run=_show)
    run = commands.add_parser("run", help="compile, run, and compare with PyTorch")
    run.add_argument("--bench", action="store_true", help="time it against PyTorch, one thread, in turns")
    run.set_defaults(run=_run)
    for command in (show, run):
        command.add_argument(
            "-c",
            dest="code",
            metavar="EXPRESSION",
            help="an expression over torch, F and nn; torch.randn(..) and its like are the inputs",
        )
        command.add_argument("--target", default="cpu", help="cpu is this machine; `mlcomp targets` lists all")
        command.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    commands.add_parser("passes", help="list the passes with their invariants").set_defaults(run=_passes)
    commands.add_parser("targets", help="list the targets with their instructions").set_defaults(run=_targets)
    return parser


# ---- commands


def _show(options: argparse.Namespace) -> int:
    from compiler import execution, pipeline  # noqa: PLC0415  (they load PyTorch)
    from compiler.schedule import steps  # noqa: PLC0415

    until = "cpp" if options.ir == "asm" else options.ir
    machine = execution.target(options.target)
    source, given = _source(options)
    applications: list[Application] = []
    clock = [time.perf_counter()]
    seconds: list[float] = []

    def trace(a: Application) -> None:
        seconds.append(time.perf_counter() - clock[0])
        applications.append(a)
        clock[0] = time.perf_counter()

    schedules = None
    if options.schedule:
        reached = pipeline.lower(given, machine, source=source, until="loop").stages["loop"]
        if len(reached.kernels) != 1:
            raise ValueError(f"--schedule is for programs of one kernel; this one has {len(reached.kernels)}")
        schedules = {reached.kernels[0].name: steps.parse(options.schedule.read_text())}
    clock[0] = time.perf_counter()
    lowering = pipeline.lower(given, machine, schedules, source=source, until=until, trace=trace)
    if options.verbose:
        _tell(applications, seconds, options.verbose)
    text = execution.assembly(lowering) if options.ir == "asm" else lowering.show(options.ir)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0


def _source(options: argparse.Namespace) -> tuple[str, Any]:
    from compiler import expression, frontend, pipeline  # noqa: PLC0415

    if options.source is not None:
        stage = options.source.suffix.lstrip(".")
        if stage not in pipeline.IRS:
            raise ValueError(
                f"--from {options.source}: the suffix must name the stage: {', '.join('.' + s for s in pipeline.IRS)}"
            )
        return stage, pipeline.IRS[stage].parse(options.source.read_text())
    return "torch", frontend.capture(*expression.program(_code(options), options.seed)).program


def _code(options: argparse.Namespace) -> str:
    if not options.code:
        raise ValueError('say what to compile, for example: -c "F.rms_norm(torch.randn(1, 32, 2048), (2048,))"')
    return str(options.code)


def _tell(applications: list[Application], seconds: list[float], verbose: int) -> None:
    """Passes on standard error with -v; on standard output as diffs between markers with -vv."""
    if verbose == 1:
        for a, s in zip(applications, seconds, strict=True):
            print(f"{a.number:3d}  {a.stage}:{a.name:16s} {s * 1e3:8.2f} ms", file=sys.stderr)
        return
    for a in applications:
        print(f">>> {a.stage}:{a.name}")
        sys.stdout.writelines(_coloured(line) for line in _difference(a))
        print(f"<<< {a.stage}:{a.name}")


def _difference(a: Application) -> list[str]:
    """What an application changed within its IR; the whole new text where it made another."""
    from compiler.pipeline import IRS  # noqa: PLC0415

    after = a.after if isinstance(a.after, str) else IRS[a.stage].show(a.after)
    if not a.within:
        return [line + "\n" for line in after.splitlines()]
    before = IRS[a.stage].show(a.before)
    return list(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before", "after", n=2))


def _coloured(line: str) -> str:
    if not sys.stdout.isatty() or line[:1] not in "+-":
        return line
    return f"\033[{32 if line[0] == '+' else 31}m{line.rstrip()}\033[0m\n"


def _run(options: argparse.Namespace) -> int:
    from compiler import expression  # noqa: PLC0415

    made = expression.run(_code(options), options.seed, options.target)
    kernels = f"{made.compiled.kernels} kernel{'s' if made.compiled.kernels != 1 else ''}"
    off = f"largest difference from eager {made.difference:.3g} (allowed {made.allowed:.3g})"
    print(f"{kernels}, compiled in {made.seconds * 1e3:.0f} ms, {off}: {'ok' if made.right else 'WRONG'}")
    if options.bench:
        best = expression.race(made)
        speedup = best["eager"] / best["mlcomp"]
        print(f"eager {best['eager'] * 1e6:.2f} us, mlcomp {best['mlcomp'] * 1e6:.2f} us: {speedup:.2f}x")
    return 0 if made.right else 1


def _passes(options: argparse.Namespace) -> int:
    from compiler.pipeline import pass_table  # noqa: PLC0415

    print(pass_table())
    return 0


def _targets(options: argparse.Namespace) -> int:
    from compiler import execution  # noqa: PLC0415

    for name in execution.TARGETS:
        t = execution.target(name)
        caches = ", ".join(f"{size >> 10} KiB" for size in (t.l1, t.l2, t.l3))
        print(f"{t.name}: {t.vector * 8}-bit vectors, {t.cores} cores, caches {caches}; {' '.join(t.features)}")
        print(f"  tensor instructions: {', '.join(i.name for i in t.instructions) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
