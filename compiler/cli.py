"""The `mlcomp` command: show a program at any stage, run it, list the passes and the targets.

Exit status: 0 when all went well, 1 when a program is refused or its result wrong, 2 for a command that makes no sense.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import CompilerError

if TYPE_CHECKING:
    from compiler.execution import Executable
    from compiler.pipeline import Application, Lowering
    from compiler.schedule.steps import Schedule
    from compiler.targets.target import Target

_SHOWN = ("torch", "tensor", "loop", "tile", "kernel", "cpp", "cuda", "asm")


class _Senseless(Exception):
    """The command line asks for what cannot be."""


def main(arguments: Sequence[str] | None = None) -> int:
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
        return _complain(_said(problem), 2 if isinstance(problem, _Senseless) else 1)


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
        case CompilerError() | ValueError() | _Senseless():
            return str(problem)
        case OSError(strerror=str(reason), filename=str(name)):
            return f"{name}: {reason.lower()}"
        case OSError():
            return (problem.strerror or str(problem)).lower()
    return (
        f"internal error, which is a bug in mlcomp: {type(problem).__name__}: {problem}. "
        "The same command with --debug shows where."
    )


@contextmanager
def _loading() -> Iterator[None]:
    """While PyTorch is imported, which swallows some interrupts, one ends the process at once: nothing is half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: object) -> None:
    os.write(2, b"mlcomp: interrupted\n")
    os._exit(130)


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
    run.add_argument("--bench", action="store_true", help="time it against PyTorch in turns, on the CPU on one thread")
    run.add_argument("--profile", action="store_true", help="what Nsight Compute says of its kernels, on a GPU")
    run.add_argument("--latency", action="store_true", help="how long each part of compiling takes, on the CPU")
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
    commands.add_parser("passes", help="list the passes with their invariants").set_defaults(run=_passes)
    targets = commands.add_parser("targets", help="list the targets with their instructions")
    targets.add_argument("-v", action="store_true", dest="verbose", help="every tensor instruction by name")
    targets.set_defaults(run=_targets)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    return parser


# ---- commands


def _show(options: argparse.Namespace) -> int:
    from compiler import pipeline  # noqa: PLC0415  (it loads NumPy; other commands need not wait)
    from compiler.targets import named  # noqa: PLC0415

    machine = named.target(options.target)
    stages = pipeline.stages(machine)
    until = stages[-1] if options.ir == "asm" else options.ir
    if until not in stages:
        raise _Senseless(f"{machine.name} has no stage {until}; its stages are {', '.join(stages)}")
    source, given = _source(options)
    if stages.index(until) < stages.index(source):
        raise _Senseless(f"--from {options.source} starts after --ir {options.ir}; ask for a stage from {source} on")
    applications: list[Application] = []
    clock = [time.perf_counter()]
    seconds: list[float] = []

    def trace(a: Application) -> None:
        seconds.append(time.perf_counter() - clock[0])
        applications.append(a)
        clock[0] = time.perf_counter()

    schedules = _schedules(options, source, given, machine) if options.schedule else None
    clock[0] = time.perf_counter()
    lowering = pipeline.lower(given, machine, schedules, source=source, until=until, trace=trace)
    if options.verbose:
        _tell(applications, seconds, options.verbose)
    text = _assembly(lowering) if options.ir == "asm" else lowering.show(options.ir)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0


def _assembly(lowering: Lowering) -> str:
    with _loading():
        from compiler import execution  # noqa: PLC0415

    return execution.assembly(lowering)


def _schedules(options: argparse.Namespace, source: str, given: Any, machine: Target) -> dict[str, Schedule]:
    from compiler import pipeline  # noqa: PLC0415
    from compiler.schedule import steps  # noqa: PLC0415

    if pipeline.IR_STAGES.index(source) > pipeline.IR_STAGES.index("loop"):
        raise _Senseless(f"--schedule has nothing to do: {options.source} is scheduled already")
    reached = pipeline.lower(given, machine, source=source, until="loop").stages["loop"]
    if len(reached.kernels) != 1:
        raise _Senseless(f"--schedule is for programs of one kernel; this one has {len(reached.kernels)}")
    try:
        return {reached.kernels[0].name: steps.parse(_text(options.schedule))}
    except ValueError as problem:
        raise CompilerError(f"{options.schedule}: {problem}") from problem


def _source(options: argparse.Namespace) -> tuple[str, Any]:
    if options.source is not None:
        return _read(options.source)
    with _loading():
        from compiler import expression  # noqa: PLC0415

    return "torch", expression.capture(_code(options), options.seed)[2].program


def _read(path: Path) -> tuple[str, Any]:
    """The stage and the program that a file holds."""
    from compiler.pipeline import IRS  # noqa: PLC0415

    stage = path.suffix.lstrip(".")
    if stage not in IRS:
        raise _Senseless(f"--from {path}: the suffix must name the stage: {', '.join('.' + s for s in IRS)}")
    try:
        program = IRS[stage].parse(_text(path))
        IRS[stage].verify(program)
    except KeyError as problem:
        raise CompilerError(f"{path}: unknown name {problem}") from problem
    except ValueError as problem:
        first, *more = str(problem).splitlines()  # what was read wrong may be a loop with all that is in it
        raise CompilerError(f"{path}: {first}{' …' if more else ''}") from problem
    return stage, program


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"not a text: byte {problem.start + 1} is not UTF-8") from problem
    if "\0" in text:
        raise ValueError(f"not a text: it has a zero byte in line {text[: text.index(chr(0))].count(chr(10)) + 1}")
    return text


def _code(options: argparse.Namespace) -> str:
    if options.code is None:
        raise _Senseless('say what to compile, for example: -c "F.rms_norm(torch.randn(1, 32, 2048), (2048,))"')
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
    if line[:1] not in "+-" or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return f"\033[{32 if line[0] == '+' else 31}m{line.rstrip()}\033[0m\n"


def _run(options: argparse.Namespace) -> int:
    with _loading():
        from compiler import expression  # noqa: PLC0415
        from compiler.targets import named  # noqa: PLC0415

    machine = named.target(options.target)
    emulated = machine.kind == "cuda" and expression.device(machine) == "cpu"
    if options.latency and machine.kind != "cpu":
        raise CompilerError(f"--latency with target {machine.name}: it is for kernels of the CPU; leave the option out")
    for option in ("bench", "profile"):
        if getattr(options, option) and (emulated or (option == "profile" and machine.kind != "cuda")):
            why = "no GPU here that runs it" if emulated else "the profiler is for GPUs"
            raise CompilerError(f"--{option} with target {machine.name}: {why}; leave the option out")
    if emulated:
        print(f"no GPU: the CUDA code for {machine.name} runs on the CPU, emulated")
    made = expression.run(_code(options), options.seed, options.target)
    kernels = f"{made.compiled.kernels} kernel{'s' if made.compiled.kernels != 1 else ''}"
    print(f"{kernels}, captured in {made.captured_in * 1e3:.0f} ms, compiled in {made.compiled_in * 1e3:.0f} ms")
    verdict = "ok" if made.right else "WRONG"
    print(f"largest difference from eager {made.difference:.3g}, allowed {made.allowed:.3g}: {verdict}")
    if options.bench:
        best = expression.race(made)
        speedup = best["eager"] / best["mlcomp"]
        print(f"eager {best['eager'] * 1e6:.2f} us, mlcomp {best['mlcomp'] * 1e6:.2f} us: {speedup:.2f}x")
    if options.profile:
        _profile(options, made.compiled)
    if options.latency:
        _latency(options)
    return 0 if made.right else 1


def _latency(options: argparse.Namespace) -> None:
    from compiler import latency  # noqa: PLC0415

    found = latency.measure(_code(options), options.seed, options.target)
    for what, parts in (("new, in a warm process", found.new), ("the same again", found.again)):
        shown = (("capture", parts.captured), ("passes", parts.lowered), ("build", parts.built), ("load", parts.loaded))
        print(f"{what}: {parts.whole * 1e3:.1f} ms ({', '.join(f'{n} {s * 1e3:.1f}' for n, s in shown)})")
    print(f"a call: {found.call * 1e6:.2f} us")


def _profile(options: argparse.Namespace, compiled: Executable) -> None:
    """Run the same command again under the profiler, which speaks for itself."""
    from compiler.render import cuda  # noqa: PLC0415
    from compiler.runtime import profile  # noqa: PLC0415

    again = [sys.executable, "-m", "compiler.cli", "run", "-c", _code(options), "--seed", str(options.seed)]
    kernels = cuda.names(compiled.lowering.stages["kernel"])
    sys.stdout.flush()
    done = subprocess.run(profile.command(kernels, [*again, "--target", options.target]), check=False)
    if done.returncode != 0:
        raise CompilerError(f"ncu ended with status {done.returncode}; what it said is above")


def _passes(options: argparse.Namespace) -> int:
    from compiler.pipeline import pass_table  # noqa: PLC0415

    print(pass_table())
    return 0


def _targets(options: argparse.Namespace) -> int:
    from compiler.targets import named  # noqa: PLC0415  (they look at the machine)

    for t in dict.fromkeys(map(named.target, named.NAMES)):  # `cuda` is one of the others or this machine's own
        caches = ", ".join(f"{size >> 10} KiB" for size in (t.l1, t.l2, t.l3) if size)
        cores = f"{t.cores} core{'s' if t.cores != 1 else ''}"
        width = f"warps of {t.warp}, {t.shared >> 10} KiB shared" if t.warp else f"{t.vector * 8}-bit vectors"
        print(f"{t.name}: {width}, {cores}, caches {caches}; {' '.join(t.features)}")
        names = [i.name for i in t.instructions]
        for line in names if options.verbose else _families(names):
            print(f"  {line}")
    return 0


def _families(names: Sequence[str]) -> list[str]:
    """Tensor instructions in one line for each kind and type.

    >>> _families(["panel.1x8.f32", "panel.2x8.f32", "dot.1x1.f32"])
    ['panel.*.f32: 2 sizes, 1x8 to 2x8', 'dot.*.f32: 1 size, 1x1']
    """
    found: dict[str, list[str]] = {}
    for kind, size, *rest in (name.split(".") for name in names):
        found.setdefault(".".join([kind, "*", *rest]), []).append(size)
    return [
        f"{family}: {len(sizes)} sizes, {sizes[0]} to {sizes[-1]}" if sizes[1:] else f"{family}: 1 size, {sizes[0]}"
        for family, sizes in found.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
