"""Timing on a GPU: CUDA graphs of many copies of a call, and a clock that waits for the device.

A graph costs the host one launch, whatever the call does in Python, so device time is measured. The time of a call
including the host is measured separately (`wall_seconds`), with a wait after each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from statistics import median

import torch

import compiler

Call = Callable[[], object]

# Both are multiples of the number of alternating operand sets, so that all graphs begin with the same set.
COPIES = 21  # of a call in one graph; gaps between graphs are then a hundredth of the measured time
WARM_UPS = 3  # calls on a side stream before the capture, in which libraries choose kernels and allocate workspaces
WALL_CALLS = 50
WORKING_SETS = tuple(1 << power for power in range(20, 31))  # bytes, from well within the L2 cache to far beyond it
REPLAYS = 10  # of a graph, of which the fastest counts
MATMUL_SIZE = 8192
PLAIN_MATMUL_SIZE = 4096  # for dtypes that PyTorch does not multiply on tensor cores by default
THREEFOLD = 3  # tf32 products whose sum is as accurate as one f32 product


def runs_on_local_gpu(target: str) -> bool:
    """Return whether code for the target runs on a GPU of this machine."""
    return target.startswith(("cuda", "sm_")) and compiler.on_gpu(compiler.target(target))


def clock() -> int:
    """Wait until the device is idle, then return the host's time in ns."""
    torch.cuda.synchronize()
    return time.perf_counter_ns()


def capture_graphs(calls: Mapping[str, Call]) -> tuple[Mapping[str, Call], int]:
    """Capture each call as a graph of COPIES copies; returns the calls unchanged and 1 if any cannot be captured."""
    try:
        return {name: _capture_graph(call) for name, call in calls.items()}, COPIES
    except RuntimeError:  # a call that waits for the device or reads a value from it cannot be captured
        torch.cuda.synchronize()
        return calls, 1


def _capture_graph(call: Call) -> Call:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(COPIES):
            call()
    return graph.replay


def wall_seconds(call: Call) -> float:
    """Return the median time of a call including the wait for the device."""
    durations = []
    for _ in range(WALL_CALLS):
        start = clock()
        call()
        durations.append(clock() - start)
    return median(durations) * 1e-9


def seconds(call: Call) -> float:
    """Return the least device time of a call, measured in a graph if it can be captured."""
    captured, copies = capture_graphs({"": call})
    return _least_seconds(captured[""]) / copies


@cache
def bandwidth() -> tuple[tuple[int, float], ...]:
    """Return pairs of the size of source and target in bytes, and bytes per second read plus written by a copy."""
    return tuple((size, _copy_rate(size)) for size in WORKING_SETS)


def _copy_rate(size: int) -> float:
    source = torch.ones(size // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return size / seconds(lambda: target.copy_(source))


@cache
def flops(dtype: torch.dtype) -> float:
    """Return the flops per second of a large matmul of PyTorch; f32 may also be computed as three tf32 products."""
    if dtype in (torch.bfloat16, torch.float16):
        return _matmul_rate(dtype, MATMUL_SIZE)
    if dtype is torch.float64:
        return _matmul_rate(dtype, PLAIN_MATMUL_SIZE)
    previous = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        tensor_cores = _matmul_rate(torch.float32, MATMUL_SIZE) / THREEFOLD
        torch.backends.cuda.matmul.allow_tf32 = False
        return max(tensor_cores, _matmul_rate(torch.float32, PLAIN_MATMUL_SIZE))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = previous


def _matmul_rate(dtype: torch.dtype, n: int) -> float:
    x, y = torch.randn(2, n, n, device="cuda", dtype=dtype)
    return 2 * n**3 / _least_seconds(lambda: torch.mm(x, y))


def _least_seconds(call: Call) -> float:
    call()
    durations = []
    for _ in range(REPLAYS):
        start = clock()
        call()
        durations.append(clock() - start)
    return min(durations) * 1e-9
