"""Race texts of one kernel: time each relative to the first, on inputs that rotate past the caches."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compiler.execution import buffers, executable, gpu_programs
from compiler.pipeline import TEXTS, Lowering
from compiler.render import header
from compiler.runtime import launcher
from compiler.targets.target import Target

CONFIDENCE = 0.99
MAX_SETS = 16  # of operands, which a race cycles through
CACHE_MULTIPLE = 3  # all sets together are this many times the last cache, if that takes no more than MAX_SETS
SAMPLE_NS = {"cpu": 500_000, "cuda": 300_000}  # least ns per sample of a contestant
RELATIVE, ABSOLUTE, LEAST = 4, 4, 3e-5  # allowed differences: ulps, roundings of the RMS
Tensors = tuple[torch.Tensor, ...]
Call = Callable[..., Tensors]


@dataclass(frozen=True)
class Contestant:
    """What a race times: `run` makes this many calls of `call`, whose code and memory a graph does not own."""

    run: Callable[[], None]
    calls: int
    call: Call


@dataclass(frozen=True)
class Ratio:
    """Median seconds of a contestant, and the median and confidence interval of its time over the first one's."""

    seconds: float
    median: float
    low: float
    high: float


def lowering_of(text: str, target: Target) -> Lowering:
    """An emitted text with the launches of its header."""
    return Lowering({"kernel": header.parse(text), TEXTS[target.kind]: text}, target, {})


def operands(first: Sequence[torch.Tensor], target: Target) -> list[list[torch.Tensor]]:
    """Copies of the inputs on the target's device, enough sets to exceed the caches."""
    device = gpu_programs.tensors_on(target)
    size = sum(x.numel() * x.element_size() for x in first)
    set_count = min(MAX_SETS, math.ceil(CACHE_MULTIPLE * max(target.l2, target.l3) / max(size, 1)))
    # Copies suffice: the time depends on addresses, not on values.
    first_set = [x.to(device) if x.is_contiguous() else _copy_with_strides(x, device) for x in first]
    return [first_set, *([_copy_with_strides(x, device) for x in first_set] for _ in range(set_count - 1))]


def _copy_with_strides(x: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the same strides."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)


def call(lowering: Lowering, cache: object) -> Call:
    """A text as a function of tensors."""
    planned = buffers.plan(lowering, {})
    if lowering.target.kind == "cuda":
        return gpu_programs.loader(lowering, {}, 0, cache, launcher.refuse_data)(planned)  # type: ignore[arg-type]
    path = executable.build_text(lowering, cache)  # type: ignore[arg-type]
    return launcher.load(path, planned, constants={}, threads=1, cache=cache, invalid=launcher.refuse_data)  # type: ignore[arg-type]


def describe_difference(ours: Tensors, theirs: Tensors, inputs: Sequence[torch.Tensor]) -> str:
    """Describe a difference of results beyond what the order of summation explains; empty if there is none."""
    dtypes = {x.dtype for x in (*inputs, *theirs) if x.is_floating_point()}
    coarsest = max((torch.finfo(d).eps for d in dtypes), default=0.0)
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not b.is_floating_point():
            is_wrong = a != b
        else:
            x, y = a.double(), b.double()
            rms = float(y[y.isfinite()].square().mean().sqrt().nan_to_num(0.0)) if y.numel() else 0.0
            allowed = RELATIVE * torch.finfo(b.dtype).eps * y.abs() + max(ABSOLUTE * coarsest, LEAST) * rms
            is_wrong = ~((x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= allowed))
        if bool(is_wrong.any()):
            return f"{int(is_wrong.sum())} of {is_wrong.numel()} elements of result {n} are wrong"
    return ""


def race(contestants: Sequence[Contestant], rounds: int, kind: str) -> list[Ratio]:
    """Time all contestants in each round, in random order, relative to the first."""
    clock = _device_clock if kind == "cuda" else time.thread_time_ns
    rng = np.random.default_rng(0)
    rows = np.empty((rounds, len(contestants)))
    for row in rows:
        for n in rng.permutation(len(contestants)):
            start = clock()
            contestants[n].run()
            row[n] = max(clock() - start, 1) / contestants[n].calls
    logs = np.log(rows) - np.log(rows[:, :1])
    return [_ratio(rows[:, n] * 1e-9, logs[:, n]) for n in range(len(contestants))]


def _ratio(seconds: np.ndarray, logs: np.ndarray) -> Ratio:
    """The interval is the narrowest pair of order statistics that contains the median with CONFIDENCE."""
    ordered, count = np.sort(logs), len(logs)
    tail, rank = 0.0, 0
    for r in range((count + 1) // 2):
        tail += math.comb(count, r) * 0.5**count
        if 1 - 2 * tail < CONFIDENCE:
            break
        rank = r
    low, high = float(ordered[rank]), float(ordered[count - 1 - rank])
    return Ratio(float(np.median(seconds)), math.exp(float(np.median(logs))), math.exp(low), math.exp(high))


def contestant(call: Call, sets: Sequence[Sequence[torch.Tensor]], kind: str) -> Contestant:
    """A kernel as a contestant: calls it on the sets in turn, in a CUDA graph on a GPU, long enough for a sample."""
    return (_graph if kind == "cuda" else _loop)(call, sets)


def _loop(call: Call, sets: Sequence[Sequence[torch.Tensor]]) -> Contestant:
    call(*sets[0])
    start = time.thread_time_ns()
    call(*sets[-1])
    duration = max(time.thread_time_ns() - start, 1)
    calls = max(1, round(SAMPLE_NS["cpu"] / duration))
    return Contestant(functools.partial(_repeat, call, calls, sets), calls, call)


def _repeat(call: Call, calls: int, sets: Sequence[Sequence[torch.Tensor]]) -> None:
    for n in range(calls):
        call(*sets[n % len(sets)])


def _graph(call: Call, sets: Sequence[Sequence[torch.Tensor]]) -> Contestant:
    """A replay costs the host one launch.

    `torch.cuda.graph` would return all cached memory to the driver first, which takes longer than the race.
    """
    for _ in range(3):
        call(*sets[0])
    start = _device_clock()
    for s in sets:
        call(*s)
    duration = max(_device_clock() - start, 1) / len(sets)
    calls = max(len(sets), min(64, round(SAMPLE_NS["cuda"] / duration)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_capturing()):
        graph.capture_begin()
        try:
            _repeat(call, calls, sets)
        finally:
            graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    return Contestant(graph.replay, calls, call)


@functools.cache
def _capturing() -> torch.cuda.Stream:
    """The stream of captures: the default stream cannot be captured."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _device_clock() -> int:
    torch.cuda.synchronize()
    return time.perf_counter_ns()
