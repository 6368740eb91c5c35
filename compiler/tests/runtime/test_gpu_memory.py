"""Programs with memory of their own: when it is asked for, of which GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from compiler.runtime import gpu_memory


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The pools that are in use, in turn, by a stand-in for torch's."""
    made: list[str] = []
    seen: list[tuple[str, int]] = []

    def pool() -> str:
        made.append(f"pool {len(made)}")
        return made[-1]

    @contextmanager
    def use(pool: str, device: int) -> Iterator[None]:
        seen.append((pool, device))
        yield
        seen.append(("torch's", device))

    monkeypatch.setattr(torch.cuda, "MemPool", pool, raising=False)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(seen) and seen[-1] == ("capture", 0))
    return seen


def launch(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return arguments


def test_calls_allocate_in_one_pool(asked: list[tuple[str, int]]) -> None:
    memory = gpu_memory.MemoryPools()
    first, second = (gpu_memory.with_memory_pools(launch, memory) for _ in range(2))
    x = torch.randn(3)
    assert first(x) == (x,) and second(x) == (x,)
    assert asked == [("pool 0", 1), ("torch's", 1)] * 2
    gpu_memory.with_memory_pools(launch, gpu_memory.MemoryPools())(x)
    assert asked[-2:] == [("pool 1", 1), ("torch's", 1)]


def test_what_is_captured_has_the_memory_of_the_graph(asked: list[tuple[str, int]]) -> None:
    asked.append(("capture", 0))
    gpu_memory.with_memory_pools(launch, gpu_memory.MemoryPools())(torch.randn(3))
    assert asked == [("capture", 0)]
