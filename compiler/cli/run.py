"""`mlcomp run`: compile and run a program, or a text of any stage, and compare the result with PyTorch."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.cli import model
from compiler.cli.sources import (
    UsageError,
    add_shared,
    check_suffix,
    expression_text,
    interruptible_import,
    schedule_text,
)
from compiler.errors import CompilerError
from compiler.passes.quantize import MODES

if TYPE_CHECKING:
    from compiler.execution import onnx_models
    from compiler.execution.executable import Executable
    from compiler.execution.expression import Outcome
    from compiler.interpret.verdicts import Verdict


def options(command: argparse.ArgumentParser) -> None:
    text = "run a text of any stage, perhaps edited, on the inputs of -c, or on random inputs without -c"
    command.add_argument("--from", dest="source", type=Path, metavar="FILE", help=text)
    add_shared(command, "--onnx", "--arg")
    command.add_argument(
        "--bench", action="store_true", help="time it alternately with eager PyTorch; on a CPU, both use one thread"
    )
    add_shared(command, "--schedule")
    model.options(command)
    command.add_argument("--quantize", choices=MODES, help="quantize the weights of matmuls")
    command.add_argument("--profile", action="store_true", help="profile the kernels with Nsight Compute, on a GPU")
    command.add_argument("--latency", action="store_true", help="time each phase of compilation, for CPU targets")


def run(options: argparse.Namespace) -> int:
    if options.quantize and (options.source or options.onnx):
        raise UsageError("--quantize works with -c or --model, not with --from or --onnx")
    if options.model is not None:
        return model.run(options)
    model.check_no_model_options(options)
    with interruptible_import():
        from compiler.execution import expression, gpu_programs, named  # noqa: PLC0415

    if options.source is not None:
        return _run_text(options)
    if options.onnx is not None:
        return _run_onnx(options)
    options.target = options.target or "cpu"
    machine = named.target(options.target)
    emulated = machine.kind == "cuda" and gpu_programs.tensors_on(machine) == "cpu"
    if options.latency and machine.kind != "cpu":
        raise CompilerError(f"--latency with target {machine.name}: it works only for CPU targets; remove the option")
    for option in ("bench", "profile"):
        if getattr(options, option) and (emulated or (option == "profile" and machine.kind != "cuda")):
            reason = "this machine has no GPU that runs it" if emulated else "it works only for GPU targets"
            raise CompilerError(f"--{option} with target {machine.name}: {reason}; remove the option")
    if emulated:
        _print_emulated(machine.name)
    try:
        text, schedules = expression_text(options), schedule_text(options)
        outcome = expression.run(text, options.seed, options.target, schedules, options.quantize)
    except ValueError as problem:
        if options.schedule is None:
            raise
        raise CompilerError(f"{options.schedule}: {problem}") from problem
    _print_compilation(outcome)
    _print_verdict(outcome.difference, outcome.verdict)
    if outcome.quantization is not None:
        print(f"quantization changes results by at most {outcome.quantization:.3g}")
    if options.bench:
        best = expression.race(outcome)
        speedup = best["eager"] / best["mlcomp"]
        print(f"eager {best['eager'] * 1e6:.2f} us, mlcomp {best['mlcomp'] * 1e6:.2f} us: {speedup:.2f}x")
    if options.profile:
        _profile(options, outcome.compiled)
    if options.latency:
        _print_latency(options)
    return 0 if outcome.verdict.ok else 1


def _print_emulated(target: str) -> None:
    print(f"no GPU: the CUDA code for {target} runs on the CPU, emulated")


def _print_compilation(outcome: Outcome | onnx_models.Outcome) -> None:
    kernels = f"{outcome.compiled.kernels} kernel{'s' if outcome.compiled.kernels != 1 else ''}"
    print(
        f"{kernels}, captured in {outcome.capture_seconds * 1e3:.0f} ms, "
        f"compiled in {outcome.compile_seconds * 1e3:.0f} ms"
    )
    for x in outcome.compiled.code.fallbacks:
        print(f"kernel {x.kernel}: its schedule was given up for a plainer one: {x.reason}")


def _run_onnx(options: argparse.Namespace) -> int:
    """Run an ONNX model on random inputs and compare with the reference evaluator of the onnx package."""
    for option in ("bench", "profile", "latency", "schedule", "code"):
        if getattr(options, option):
            raise UsageError(f"--onnx cannot be combined with {'-c' if option == 'code' else f'--{option}'}")
    from compiler.execution import onnx_models  # noqa: PLC0415

    outcome = onnx_models.run(options.onnx, options.seed, options.target or "cpu", dict(options.shapes))
    if outcome.compiled.emulated:
        _print_emulated(outcome.compiled.code.target.name)
    _print_compilation(outcome)
    is_correct = outcome.difference <= outcome.allowed
    verdict = "ok" if is_correct else "WRONG"
    print(
        f"largest difference from onnx's evaluator {outcome.difference:.3g}, allowed {outcome.allowed:.3g}: {verdict}"
    )
    return 0 if is_correct else 1


def _print_verdict(difference: float, verdict: Verdict) -> None:
    """Print the verdict that the suite would give."""
    difference_text = f"largest difference from eager {difference:.3g}"
    if verdict.ok:
        print(f"{difference_text}, largest error {verdict.err_over_tol:.2g} of its bound: ok")
    else:
        print(f"{difference_text}: WRONG\n{verdict.message}")


def _run_text(options: argparse.Namespace) -> int:
    """Run the text of a file three times, with guard zones around the buffers, in a process of its own."""
    for option in ("bench", "profile", "latency", "schedule"):
        if getattr(options, option):
            raise UsageError(f"--{option} cannot be combined with --from")
    check_suffix(options.source, "--from")
    with interruptible_import():
        from compiler.execution import trial  # noqa: PLC0415

    trial_run = trial.run(options.source, options.target, options.code, options.seed, dict(options.shapes))
    target = trial_run.lowering.target
    if not trial.is_on_hardware(target):
        _print_emulated(target.name)
    for name, value in trial.summary(trial_run):
        print(f"{name}: {value}")
    for complaint in trial_run.complaints:
        print(complaint)
    if trial_run.verdict is not None:
        _print_verdict(trial_run.difference, trial_run.verdict)
    return 0 if trial_run.is_right else 1


def _print_latency(options: argparse.Namespace) -> None:
    from compiler.execution import latency  # noqa: PLC0415

    latencies = latency.measure(expression_text(options), options.seed, options.target)
    for label, parts in (("new, in a warm process", latencies.new), ("the same again", latencies.again)):
        phases = (
            ("capture", parts.captured),
            ("passes", parts.lowered),
            ("build", parts.built),
            ("load", parts.loaded),
        )
        print(f"{label}: {parts.total * 1e3:.1f} ms ({', '.join(f'{n} {s * 1e3:.1f}' for n, s in phases)})")
    print(f"a call: {latencies.call * 1e6:.2f} us")


def _profile(options: argparse.Namespace, compiled: Executable) -> None:
    """Run the same command again under the profiler, which prints its own output."""
    from compiler.render import cuda  # noqa: PLC0415
    from compiler.runtime import profile  # noqa: PLC0415

    command = [sys.executable, "-m", "compiler.cli", "run", "-c", expression_text(options), "--seed", str(options.seed)]
    kernels = cuda.names(compiled.code.stages["kernel"])
    sys.stdout.flush()
    completed = subprocess.run(profile.command(kernels, [*command, "--target", options.target]), check=False)
    if completed.returncode != 0:
        raise CompilerError(f"ncu ended with status {completed.returncode}; its output is above")
