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

Call = Callable[[], object]

COPIES = 20  # of a call in one graph: gaps between graphs are then a hundredth of what is timed
WARM_UPS = 3  # calls on a side stream before the capture: libraries choose kernels and allocate workspaces in them
WALL_CALLS = 50
COPIED = 1 << 29  # bytes of a copy that no cache holds
MATMUL_SIZE = 8192
PLAIN_MATMUL_SIZE = 4096  # of the types that no tensor core multiplies in PyTorch's default mode


def here(target: str) -> bool:
    """Whether code for that target runs on a GPU of this machine."""
    return target.startswith(("cuda", "sm_")) and torch.cuda.is_available()


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


@cache
def bandwidth() -> float:
    """Bytes per second, read plus written, of a copy within the device's memory."""
    source = torch.ones(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED / _least_seconds(lambda: target.copy_(source))


@cache
def flops(dtype: torch.dtype) -> float:
    """Flops per second of a large matrix product as PyTorch computes it."""
    narrow = dtype in (torch.bfloat16, torch.float16)
    n = MATMUL_SIZE if narrow else PLAIN_MATMUL_SIZE
    x, y = torch.randn(2, n, n, device="cuda", dtype=dtype if narrow or dtype is torch.float64 else torch.float32)
    return 2 * n**3 / _least_seconds(lambda: torch.mm(x, y))


def _least_seconds(call: Call, rounds: int = 10) -> float:
    call()
    taken = []
    for _ in range(rounds):
        start = clock()
        call()
        taken.append(clock() - start)
    return min(taken) * 1e-9
