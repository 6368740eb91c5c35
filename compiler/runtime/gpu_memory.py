"""Let a launcher allocate results and temporaries from a memory pool that it shares with few others.

Graphs contain addresses. Allocations get the same addresses again if all users of the pool repeat their allocations; in
torch's common pool this depends on everything else in the process.
"""

from __future__ import annotations

from typing import Any

import torch

from compiler.runtime.launcher import Launcher


class MemoryPools:
    """Pools of torch's allocator, one per GPU, created on first use. A tensor may outlive its pool."""

    def __init__(self) -> None:
        self._pools: dict[int, Any] = {}

    def pool(self, device: int) -> Any:  # torch.cuda.MemPool, which only builds for GPUs have
        if device not in self._pools:
            self._pools[device] = torch.cuda.MemPool()
        return self._pools[device]


def with_memory_pools(launch: Launcher, pools: MemoryPools) -> Launcher:
    """The launcher with its allocations in `pools`; during the capture of a graph, in the memory of that graph."""

    def call(*arguments: Any) -> tuple[torch.Tensor, ...]:
        if torch.cuda.is_current_stream_capturing():
            return launch(*arguments)
        devices = (x.get_device() for x in arguments if isinstance(x, torch.Tensor) and x.is_cuda)
        device = next(devices, None)
        device = torch.cuda.current_device() if device is None else device
        with torch.cuda.use_mem_pool(pools.pool(device), device):
            return launch(*arguments)

    return call
