"""What threads that go over memory are estimated to take: what more blocks, bytes, waits or trees do to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.schedule.cost.gpu_threads import Threads, clocks
from compiler.targets import nvidia

TARGET = nvidia.SM_90A
COSTS = dict(TARGET.costs)
MANY = Threads(blocks=8192, threads=256, held=1e8, moved=1e8, waits=1, issued=20)


@pytest.mark.parametrize(
    "more",
    [
        replace(MANY, held=2e8),
        replace(MANY, waits=2),
        replace(MANY, trees=1, together=256),
        replace(MANY, issued=4000),
        replace(MANY, nears=8),
    ],
)
def test_more_takes_longer(more: Threads) -> None:
    assert clocks(more, TARGET) > clocks(MANY, TARGET)


def test_no_kernel_is_faster_than_memory_or_than_its_blocks_come() -> None:
    assert clocks(MANY, TARGET) > MANY.held / (COSTS["stream"] * TARGET.cores)
    small = replace(MANY, blocks=1 << 17, threads=32)
    assert clocks(small, TARGET) > small.blocks / COSTS["blocks"]


def test_what_was_just_made_is_nearer_than_memory() -> None:
    limit = TARGET.l2 / 16
    here, there = (clocks(replace(MANY, blocks=132, held=limit * n, moved=limit), TARGET) for n in (1.0, 1.001))
    assert here < there
