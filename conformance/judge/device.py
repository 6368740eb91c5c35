"""A race on a GPU: callables in; the same as graphs of many copies of a call, and a clock that waits for the device.

A graph of copies costs the host one launch whatever the callable does in Python, so what is timed is the device. What
a call costs the host is measured apart, one call at a time with a wait after each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from statistics import median

import torch

import compiler

Call = Callable[[], object]

# Both are multiples of the sets of operands that take turns, so that all graphs begin with the same one.
COPIES = 21  # of a call in one graph: gaps between graphs are then a hundredth of what is timed
WARM_UPS = 3  # calls on a side stream before the capture: libraries choose kernels and allocate workspaces in them
WALL_CALLS = 50
WORKING_SETS = tuple(1 << power for power in range(20, 31))  # bytes, from well inside the L2 to far beyond it
REPLAYS = 10  # of a graph, of which the fastest counts
MATMUL_SIZE = 8192
PLAIN_MATMUL_SIZE = 4096  # of the types that no tensor core multiplies in PyTorch's default mode
THREEFOLD = 3  # products of tf32 numbers that make one as good as a product of f32


def here(target: str) -> bool:
    """Whether code for that target runs on a GPU of this machine."""
    return target.startswith(("cuda", "sm_")) and compiler.on_gpu(compiler.target(target))


def clock() -> int:
    """Nanoseconds of the host, once the device has nothing left to do."""
    torch.cuda.synchronize()
    return time.perf_counter_ns()


def graphs(calls: Mapping[str, Call]) -> tuple[Mapping[str, Call], int]:
    """Each call as a graph of copies of itself, and how many; as they are, and 1, if any cannot be captured."""
    try:
        return {name: _captured(call) for name, call in calls.items()}, COPIES
    except RuntimeError:  # what waits for the device, or reads a value from it, cannot be in a graph
        torch.cuda.synchronize()
        return calls, 1


def _captured(call: Call) -> Call:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(COPIES):
            call()
    return graph.replay


def wall_seconds(call: Call) -> float:
    """The median time from the beginning of a call to the end of what it started."""
    taken = []
    for _ in range(WALL_CALLS):
        start = clock()
        call()
        taken.append(clock() - start)
    return median(taken) * 1e-9


def seconds(call: Call) -> float:
    """The least device time of a call, in a graph where it can be captured."""
    made, copies = graphs({"": call})
    return _least_seconds(made[""]) / copies


@cache
def bandwidth() -> tuple[tuple[int, float], ...]:
    """Bytes per second, read plus written, of copies within the device's memory, by bytes of both sides together."""
    return tuple((size, _copy_rate(size)) for size in WORKING_SETS)


def _copy_rate(size: int) -> float:
    source = torch.ones(size // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return size / seconds(lambda: target.copy_(source))


@cache
def flops(dtype: torch.dtype) -> float:
    """Flops per second of a large matrix product as PyTorch computes it; of f32, also as three products of tf32."""
    if dtype in (torch.bfloat16, torch.float16):
        return _matmul_rate(dtype, MATMUL_SIZE)
    if dtype is torch.float64:
        return _matmul_rate(dtype, PLAIN_MATMUL_SIZE)
    chosen = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        tensor_cores = _matmul_rate(torch.float32, MATMUL_SIZE) / THREEFOLD
        torch.backends.cuda.matmul.allow_tf32 = False
        return max(tensor_cores, _matmul_rate(torch.float32, PLAIN_MATMUL_SIZE))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = chosen


def _matmul_rate(dtype: torch.dtype, n: int) -> float:
    x, y = torch.randn(2, n, n, device="cuda", dtype=dtype)
    return 2 * n**3 / _least_seconds(lambda: torch.mm(x, y))


def _least_seconds(call: Call) -> float:
    call()
    taken = []
    for _ in range(REPLAYS):
        start = clock()
        call()
        taken.append(clock() - start)
    return min(taken) * 1e-9
