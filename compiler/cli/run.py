"""`mlcomp run`: a program compiled, run, and compared with PyTorch."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from compiler.cli.sources import expression_text, loading
from compiler.errors import CompilerError

if TYPE_CHECKING:
    from compiler.execution import Executable


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--bench", action="store_true", help="time it against PyTorch in turns, on the CPU on one thread"
    )
    command.add_argument("--profile", action="store_true", help="what Nsight Compute says of its kernels, on a GPU")
    command.add_argument("--latency", action="store_true", help="how long each part of compiling takes, on the CPU")


def run(options: argparse.Namespace) -> int:
    with loading():
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
    made = expression.run(expression_text(options), options.seed, options.target)
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

    found = latency.measure(expression_text(options), options.seed, options.target)
    for what, parts in (("new, in a warm process", found.new), ("the same again", found.again)):
        shown = (("capture", parts.captured), ("passes", parts.lowered), ("build", parts.built), ("load", parts.loaded))
        print(f"{what}: {parts.whole * 1e3:.1f} ms ({', '.join(f'{n} {s * 1e3:.1f}' for n, s in shown)})")
    print(f"a call: {found.call * 1e6:.2f} us")


def _profile(options: argparse.Namespace, compiled: Executable) -> None:
    """Run the same command again under the profiler, which speaks for itself."""
    from compiler.render import cuda  # noqa: PLC0415
    from compiler.runtime import profile  # noqa: PLC0415

    again = [sys.executable, "-m", "compiler.cli", "run", "-c", expression_text(options), "--seed", str(options.seed)]
    kernels = cuda.names(compiled.lowering.stages["kernel"])
    sys.stdout.flush()
    done = subprocess.run(profile.command(kernels, [*again, "--target", options.target]), check=False)
    if done.returncode != 0:
        raise CompilerError(f"ncu ended with status {done.returncode}; what it said is above")
