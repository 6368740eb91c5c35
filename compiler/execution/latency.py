"""Measure how long each part of compiling an expression takes, warm.

Another program is compiled first, so that PyTorch's first capture and the first run of each pass are not counted.
Kernels are built into an empty folder.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compiler import frontend
from compiler.execution import executable, expression, named
from compiler.runtime import garbage
from compiler.targets.target import Target


@dataclass(frozen=True)
class Parts:
    """Wall time in seconds: PyTorch's capture, the passes, compiler and linker, loading the result."""

    captured: float
    lowered: float
    built: float
    loaded: float

    @property
    def total(self) -> float:
        return self.captured + self.lowered + self.built + self.loaded


@dataclass(frozen=True)
class Latency:
    """Compile times of a program when new and when cached, and seconds per call (the least mean of several turns)."""

    new: Parts
    again: Parts
    call: float


def measure(code: str, seed: int, target: str) -> Latency:
    """The latency of an expression on one thread, for a target whose code runs on this CPU."""
    machine = named.target(target)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mlcomp-") as folder, torch.no_grad():
        cache = Path(folder)
        executable.compile(lambda x: torch.relu(x) + 1, (torch.ones(3, 5, 7),), machine, cache=cache)
        function, inputs = expression.program(code, seed)
        new, _ = _measure_parts(function, inputs, machine, cache)
        again, compiled = _measure_parts(function, inputs, machine, cache)
        timer = timeit.Timer("f(*x)", globals={"f": compiled, "x": inputs})
        calls = max(1, timer.autorange()[0] // 4)
        return Latency(new, again, min(timer.repeat(5, calls)) / calls)


def _measure_parts(
    function: Callable[..., Any], inputs: Sequence[Any], machine: Target, cache: Path
) -> tuple[Parts, executable.Executable]:
    times = [time.perf_counter()]
    with garbage.paused():
        captured = frontend.capture(function, inputs)
        times.append(time.perf_counter())
        lowering = executable.lowered(captured.program, machine)
        times.append(time.perf_counter())
        executable.build_text(lowering, cache)
        times.append(time.perf_counter())
        compiled = executable.build_captured(captured, machine, cache=cache)
        times.append(time.perf_counter())
    return Parts(*(b - a for a, b in itertools.pairwise(times))), compiled
