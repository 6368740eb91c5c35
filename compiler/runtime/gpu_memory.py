"""A launcher for a GPU in; one whose results and temporaries come from memory that it shares with few others, out.

Graphs hold addresses. What a program allocates lies where it lay before if all that takes from the same memory does as
it did before: in torch's memory for all that is a matter of what else the process does.
"""

from __future__ import annotations

from typing import Any

import torch

from compiler.runtime.launcher import Launcher


class Memory:
    """Pools of torch's allocator, one for each GPU, made when they are asked for. A tensor outlives its pool."""

    def __init__(self) -> None:
        self._pools: dict[int, Any] = {}

    def pool(self, device: int) -> Any:  # torch.cuda.MemPool, of builds for GPUs alone
        if device not in self._pools:
            self._pools[device] = torch.cuda.MemPool()
        return self._pools[device]


def within(launch: Launcher, memory: Memory) -> Launcher:
    """The launcher with all that it allocates in `memory`; while a graph is captured, where that has its memory."""

    def call(*arguments: Any) -> tuple[torch.Tensor, ...]:
        if torch.cuda.is_current_stream_capturing():
            return launch(*arguments)
        found = (x.get_device() for x in arguments if isinstance(x, torch.Tensor) and x.is_cuda)
        device = next(found, None)
        device = torch.cuda.current_device() if device is None else device
        with torch.cuda.use_mem_pool(memory.pool(device), device):
            return launch(*arguments)

    return call
