"""What threads that go over memory are estimated to take: what more blocks, bytes, waits or trees do to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.schedule.cost.gpu_threads import Threads, clocks
from compiler.targets import nvidia

TARGET = nvidia.SM_90A
COSTS = dict(TARGET.costs)
MANY = Threads(blocks=8192, threads=256, memory_bytes=1e8, cache_bytes=1e8, memory_waits=1, instructions=20)


@pytest.mark.parametrize(
    "more",
    [
        replace(MANY, memory_bytes=2e8),
        replace(MANY, memory_waits=2),
        replace(MANY, reductions=1, reduction_width=256),
        replace(MANY, instructions=4000),
        replace(MANY, cache_waits=8),
    ],
)
def test_more_takes_longer(more: Threads) -> None:
    assert clocks(more, TARGET) > clocks(MANY, TARGET)


def test_no_kernel_is_faster_than_memory_or_than_its_blocks_come() -> None:
    assert clocks(MANY, TARGET) > MANY.memory_bytes / (COSTS["stream"] * TARGET.cores)
    small = replace(MANY, blocks=1 << 17, threads=32)
    assert clocks(small, TARGET) > small.blocks / COSTS["blocks"]


def test_what_was_just_made_is_nearer_than_memory() -> None:
    limit = TARGET.l2 / 16
    few = replace(MANY, blocks=132, cache_bytes=limit)
    here, there = (clocks(replace(few, memory_bytes=limit * n), TARGET) for n in (1.0, 1.001))
    assert here < there
