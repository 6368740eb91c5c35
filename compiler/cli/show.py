"""`mlcomp show`: a program at one stage, and the changes of the passes before it."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.sources import UsageError, add_shared, interruptible_import, program, schedule_text
from compiler.errors import CompilerError

if TYPE_CHECKING:
    from compiler.passes.applications import Application
    from compiler.pipeline import Lowering
    from compiler.schedule.steps import Schedule
    from compiler.targets.target import Target

STAGES = ("torch", "tensor", "loop", "tile", "schedule", "kernel", "cpp", "cuda", "asm", "mlir", "triton")


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ir", choices=STAGES, default="tile", help="the stage to print (default: tile)")
    command.add_argument(
        "--dialect", choices=("linalg", "tosa"), default="linalg", help="MLIR dialect for --ir mlir (default: linalg)"
    )
    text = "start from a text, perhaps edited; its suffix names the stage: .torch .tensor .loop .tile .kernel .cpp .cu"
    command.add_argument("--from", dest="source", type=Path, metavar="FILE", help=text)
    add_shared(command, "--onnx", "--arg", "--schedule")
    help_text = "-v: print the time of each pass; -vv: print the change of each pass and schedule step as a diff"
    command.add_argument("-v", action="count", default=0, dest="verbose", help=help_text)


def show(options: argparse.Namespace) -> int:
    from compiler import pipeline  # noqa: PLC0415  (loads NumPy, which other commands do not need)
    from compiler.execution import dumps, named  # noqa: PLC0415

    mlir = {"linalg": "mlir", "tosa": "mlir:tosa"}[options.dialect]
    dialect = {"mlir": mlir, "triton": "triton"}.get(options.ir, "")
    machine = named.target(options.target or dialect or dumps.target_of(options.source))
    stages = pipeline.stages(machine)
    until = {"asm": stages[-1], "schedule": "tile"}.get(options.ir, options.ir)
    if until not in stages or (options.ir == "asm" and until != "cpp"):
        raise UsageError(
            f"{machine.name} has no stage {options.ir}; its stages are {', '.join(stages)}; choose another --target"
        )
    source, source_program = program(options)
    if source not in stages:
        raise UsageError(
            f"{machine.name} has no stage {source}, the stage of {options.source}; choose another --target"
        )
    if stages.index(until) < stages.index(source):
        raise UsageError(
            f"--from {options.source} starts after --ir {options.ir}; choose stage {source} or a later one"
        )
    applications: list[Application] = []
    clock = [time.perf_counter()]
    seconds: list[float] = []

    def trace(a: Application) -> None:
        seconds.append(time.perf_counter() - clock[0])
        applications.append(a)
        clock[0] = time.perf_counter()

    schedules = _schedules(options, source, source_program, machine) if options.schedule else None
    clock[0] = time.perf_counter()
    if isinstance(source_program, str):
        lowering = dumps.load(options.source, machine)
    else:
        lowering = pipeline.lower(source_program, machine, schedules, source=source, until=until, trace=trace)
    if options.verbose:
        _print_trace(applications, seconds, options.verbose)
    text = _text_of(lowering, options.ir)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0


def _text_of(lowering: Lowering, ir: str) -> str:
    from compiler.schedule import files  # noqa: PLC0415

    match ir:
        case "asm":
            return _assembly(lowering)
        case "schedule":
            return files.show_schedules(lowering.schedules)
    return lowering.show(ir)


def _assembly(lowering: Lowering) -> str:
    with interruptible_import():
        from compiler.execution import executable  # noqa: PLC0415

    return executable.assembly(lowering)


def _schedules(options: argparse.Namespace, source: str, source_program: Any, machine: Target) -> dict[str, Schedule]:
    from compiler import pipeline  # noqa: PLC0415

    if source not in ("torch", "tensor", "loop"):
        raise UsageError(f"--schedule has no effect: {options.source} is already scheduled")
    try:
        return pipeline.read_schedules(schedule_text(options), source_program, machine, source)
    except ValueError as problem:
        raise CompilerError(f"{options.schedule}: {problem}") from problem


def _print_trace(applications: list[Application], seconds: list[float], verbose: int) -> None:
    """With -v, print the time of each pass to stderr; with -vv, print the diff of each pass or step between markers."""
    if verbose == 1:
        spent = 0.0
        for a, s in zip(applications, seconds, strict=True):
            spent += s
            if not a.part_of:
                print(f"{a.number:3d}  {a.stage}:{a.name:16s} {spent * 1e3:8.2f} ms", file=sys.stderr)
                spent = 0.0
        return
    steps: list[Application] = []
    for a in applications:
        if a.part_of:
            steps.append(a)
            continue
        print(f">>> {a.stage}:{a.name}")
        for part in steps:
            position = f"{part.number} of {part.kernel}"
            print(f">>> {part.stage}:{part.name}  # {position}")
            sys.stdout.writelines(_coloured(line) for line in _diff_lines(part))
            print(f"<<< {part.stage}:{part.name}  # {position}")
        if not steps:
            sys.stdout.writelines(_coloured(line) for line in _diff_lines(a))
        print(f"<<< {a.stage}:{a.name}")
        steps = []


def _diff_lines(a: Application) -> list[str]:
    """The diff of an application; the whole new text if it lowered the program to another stage."""
    from compiler.ir.stages import IRS  # noqa: PLC0415

    after = a.after if isinstance(a.after, str) else IRS[a.stage].show(a.after)
    if not a.within:
        return [line + "\n" for line in after.splitlines()]
    before = IRS[a.stage].show(a.before)
    return list(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before", "after", n=2))


def _coloured(line: str) -> str:
    if line[:1] not in "+-" or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return f"\033[{32 if line[0] == '+' else 31}m{line.rstrip()}\033[0m\n"
