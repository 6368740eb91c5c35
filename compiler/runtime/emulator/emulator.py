"""Build CUDA text for the CPU, and run launch plans on it.

Fast mode runs blocks on all cores. Check mode inspects every access and reports what a GPU need not forgive: races,
missing and divergent barriers, deadlocks, accesses that are out of bounds, misaligned or uninitialised, and
asynchronous copies and matmuls that are not waited for.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compiler.errors import CompilerError
from compiler.runtime import build as builder
from compiler.runtime import detect, launcher, limits, store
from compiler.runtime.emulator import buffers, findings, native
from compiler.runtime.emulator.findings import Report
from compiler.runtime.launches import Launch, LaunchPlan

HERE = Path(__file__).resolve().parent

_COMMON = (
    "-std=c++17", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-shared", "-fPIC",
    *builder.SOUNDNESS_FLAGS,
)  # fmt: skip
_RUNTIME = (*_COMMON, "-O2", "-fno-rtti", "-static-libstdc++", "-static-libgcc", "-lpthread")
# Texts access memory as vectors of another type, which nvcc permits. nvcc assumes that signed integers do not overflow,
# so checked texts must not overflow. Sums of floats must not be vectorised: GCC 12 adds up the wrong elements (its bug
# 110381).
_KERNEL = (
    *_COMMON, "-fno-tree-loop-vectorize", "-fno-strict-aliasing", "-x", "c++",
    "-nostdlib", "-Wl,--no-undefined", "-lm", "-lc", "-lgcc",
)  # fmt: skip
# The runtime replaces the sanitizer's library, so its callbacks see the kernel's accesses and nothing else. SRA is off,
# so that a vector access stays one access, whose alignment is checked.
_CHECKED = (
    "-O1", "-g1", "-fno-tree-sra", "-fno-omit-frame-pointer", "-DMLC_CHECK", "-fsanitize=thread",
    "--param", "tsan-instrument-func-entry-exit=0", "--param", "tsan-distinguish-volatile=1",
    "-fsanitize=bounds,signed-integer-overflow", "-fno-sanitize-recover=bounds,signed-integer-overflow",
)  # fmt: skip
_PATTERN_FILL = "-ftrivial-auto-var-init=pattern"  # uninitialised registers hold conspicuous numbers; since GCC 12


@dataclass(frozen=True)
class Outcome:
    """Findings of a run. `complete` is False if a finding ended it early, and `invalid` is True if kernels reject the
    data. `switches` and `accesses` are statistics."""

    reports: tuple[Report, ...]
    complete: bool
    switches: int
    accesses: int
    invalid: bool = False


def runtime(check: bool, cache: Path | None = None) -> Path:
    """The machine for one mode, built into `cache` unless it is there. Raises CompilerError except on x86-64."""
    if platform.machine() != "x86_64":
        raise CompilerError(
            f"CUDA texts run on the CPU of x86-64 machines, and this one is {platform.machine()}; use a GPU"
        )
    source = (HERE / "runtime.cpp").read_text()
    flags = (*_RUNTIME, *(("-DMLC_CHECK", "-fno-omit-frame-pointer") if check else ()))
    return builder.build(source, flags, cache=cache, include=(HERE,))


def build(text: str, include: tuple[Path, ...] = (), check: bool = False, cache: Path | None = None) -> Path:
    """The shared object of a text of CUDA kernels for one mode. Raises ToolchainError with the compiler's message.

    `include` has the headers that the text includes; those of the emulator are added.
    """
    machine = runtime(check, cache)
    # The machine is found relative to the kernel's own folder in the cache, so that a cache may be moved.
    runtime_flags = (
        "-Wl,--no-as-needed",
        f"-L{machine.parent}",
        f"-Wl,-rpath,$ORIGIN/../{machine.parent.name}",
        f"-l:{machine.name}",
    )
    flags = (*_KERNEL, *(_checked_flags() if check else ("-O1", "-fwrapv")), *runtime_flags)
    return builder.build(text, flags, cache=cache, include=(*include, HERE))


def _checked_flags() -> tuple[str, ...]:
    major = detect.toolchain("g++").version.split(".")[0]
    return (*_CHECKED, _PATTERN_FILL) if major.isdigit() and int(major) >= 12 else _CHECKED


def run(
    path: Path,
    plan: LaunchPlan,
    tensors: Sequence[npt.NDArray[np.generic]],
    check: bool = False,
    seed: int = 0,
    timeout: float = 60.0,
    threads: int = 0,
) -> Outcome:
    """Run a plan on arrays, inputs then outputs, which must be contiguous and have the sizes of the plan.

    See `run_pointers` for the other arguments.
    """
    expected = (*plan.inputs, *plan.outputs)
    if len(tensors) != len(expected):
        raise CompilerError(f"the plan has {len(expected)} inputs and outputs, and {len(tensors)} arrays were given")
    for tensor, buffer in zip(tensors, expected, strict=True):
        if not tensor.flags.c_contiguous or tensor.nbytes < buffer.size:
            raise CompilerError(f"{buffer.name} must be contiguous and have {buffer.size} bytes, not {tensor.nbytes}")
    return run_pointers(path, plan, [tensor.ctypes.data for tensor in tensors], check, seed, timeout, threads)


def run_pointers(
    path: Path,
    plan: LaunchPlan,
    pointers: Sequence[int],
    check: bool = False,
    seed: int = 0,
    timeout: float = 60.0,
    threads: int = 0,
) -> Outcome:
    """Run a plan on addresses of its inputs, outputs and temporaries; without those of temporaries, allocate them.

    `seed` orders threads and blocks: 0 forward, 1 backward, any other at random. `timeout` is in seconds per launch. In
    check mode kernels work on guarded copies; outputs are copied back even after a finding. A finding in fast mode (a
    deadlock, a divergent collective) also ends the run. `threads` 0 means all cores; check mode uses one.
    """
    plan_buffers = plan.buffers
    addresses = list(pointers)
    if len(addresses) == len(plan.inputs) + len(plan.outputs):
        arena = np.empty(plan.arena + 256, np.uint8)
        start = arena.ctypes.data + -arena.ctypes.data % 256
        addresses += [start + offset for offset in plan.offsets]
        for address, buffer in list(zip(addresses, plan_buffers, strict=True))[len(plan_buffers) - plan.zeros :]:
            ctypes.memset(address, 0, buffer.size)
    if len(addresses) != len(plan_buffers):
        raise CompilerError(f"the plan has {len(plan_buffers)} buffers, and {len(addresses)} addresses were given")
    library = launcher.library(path)
    machine = native.Machine(library)
    if machine.checks != check:
        raise CompilerError(f"{path} was not built for {'check' if check else 'fast'} mode")
    workers = 1 if check else threads or len(os.sched_getaffinity(0))
    for launch in plan.launches:
        limits.check(launch, len(plan_buffers))
        limits.check_text(launch, _text(path))
    reports: list[Report] = []
    switches = accesses = 0
    complete = True
    with buffers.arguments(machine, plan, addresses) as arguments:
        for launch in plan.launches:
            result = _launch(machine, library, launch, arguments, _LaunchOptions(seed, timeout, workers))
            switches += result.switches
            accesses += result.accesses
            reports += findings.reports(result, launch.kernel, path)
            complete = not result.failed
            if not complete:
                break
        if complete:
            reports += [
                Report("not zero again", plan.launches[-1].kernel, 0, buffer=b.name, offset=at, bytes=1,
                       note="a temporary that launches find zero must be left so by the last of them")
                for b, at in buffers.nonzero_buffers(plan, arguments)
            ]  # fmt: skip
        invalid = bool(arguments.failed.value)
    return Outcome(tuple(reports), complete, switches, accesses, invalid)


@functools.lru_cache(maxsize=64)
def _text(path: Path) -> str:
    """The source of a shared object, which is published with it."""
    text = store.read(path.with_suffix(".cpp"))
    if text is None:
        raise CompilerError(f"the text of the compiled kernel {path} is lost; run the same again, which builds it anew")
    return text.decode()


@dataclass(frozen=True)
class _LaunchOptions:
    """How launches run: order, timeout in seconds, threads of the host."""

    seed: int
    timeout: float
    workers: int


def _launch(
    machine: native.Machine, library: ctypes.CDLL, launch: Launch, arguments: buffers.Arguments, options: _LaunchOptions
) -> native.Result:
    try:
        kernel = ctypes.cast(getattr(library, launch.kernel), ctypes.c_void_p)
    except AttributeError as error:
        raise CompilerError(f"the built text has no kernel {launch.kernel}") from error
    words = [arguments.word(argument) for argument in launch.args]
    word_count = max(6, len(words))
    packed = (ctypes.c_long * word_count)(*(word - (1 << 64) if word >= 1 << 63 else word for word in words))
    request = native.Request(
        kernel, ctypes.cast(packed, ctypes.c_void_p), word_count, launch.grid, launch.block, launch.cluster,
        launch.shared, int(launch.synchronizes), options.workers, int(launch.overlaps), options.seed, options.timeout,
    )  # fmt: skip
    result = native.Result()
    if all(launch.grid):
        machine.launch(ctypes.byref(request), ctypes.byref(result))
    return result
