"""Calls on a GPU in; the time that the device takes for one of them, without what it costs the host, out.

Many copies of the calls are captured in one graph, and events around its replays tell the time:
the host launches once, so that its own speed does not matter.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], object]
WARM_UPS = 3  # outside of the graph: libraries choose kernels and allocate workspaces in them
COPIES = 20  # at least, in one graph: the gap between graphs is then a hundredth of what is timed


def seconds(calls: Sequence[Call], copies: int = COPIES, replays: int = 15) -> float:
    """Median device time of one call, in seconds, over `replays` of a graph that goes through all `calls` in turn.

    Calls that work on different memory, of twice the L2 in total, find it cold: see `sets`. Raises DeviceError or
    RuntimeError for what cannot be captured, such as a call that waits for the device.
    """
    cuda: Any = torch.cuda  # parts of it are untyped
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for call in calls:
            for _ in range(WARM_UPS):
                call()
    cuda.current_stream().wait_stream(side)
    cuda.synchronize()
    rounds = -(-copies // len(calls))
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    taken = []
    for _ in range(replays + WARM_UPS):
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e-3 / (rounds * len(calls)))
    return float(statistics.median(taken[WARM_UPS:]))


def sets(size: int, l2: int, most: int = 64) -> int:
    """How many sets of buffers of `size` bytes a cold measurement goes through, so that each is evicted in between.

    >>> sets(10, 100), sets(1000, 100), sets(1, 1000)
    (20, 2, 64)
    """
    return max(2, min(most, -(-2 * l2 // max(1, size))))
