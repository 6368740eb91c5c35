"""What pipelines of tiles are estimated to take: what more work, blocks, neighbours or stages do to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.schedule.cost.gpu import Step, Work, kernel_clocks, step
from compiler.targets import nvidia

TARGET = nvidia.SM_90A
COSTS = dict(TARGET.costs)
PLAIN = Step(128, 256, 64, groups=2, terms=1, rate=2048, copied_bytes=49152, depth=3)
SPLIT = Step(128, 64, 32, groups=2, terms=3, rate=1024, copied_bytes=24576, depth=5, prepared=64)
WORK = Work(blocks=132, steps=64, resident=1, read_bytes=1 << 20, tile=131072, start_clocks=COSTS["fill"])


def clocks(w: Work, s: Step = PLAIN) -> float:
    return kernel_clocks(w, lambda resident, ending: step(s, resident, COSTS, ending), TARGET)


@pytest.mark.parametrize("s", [PLAIN, SPLIT], ids=["plain", "split"])
def test_a_step_takes_at_least_its_products_and_less_with_more_stages(s: Step) -> None:
    assert step(s, 1, COSTS) >= s.m * s.n * s.k * s.terms / s.rate
    assert step(replace(s, depth=s.depth + 1), 1, COSTS) < step(s, 1, COSTS)
    assert step(s, 1, COSTS) < step(s, 2, COSTS) <= 2 * step(s, 1, COSTS)


def test_a_wave_more_costs_as_much_as_a_full_one() -> None:
    one, two = clocks(WORK), clocks(replace(WORK, blocks=133))
    assert two - one == pytest.approx(one - COSTS["start"], rel=0.01)


def test_blocks_that_stay_fill_their_pipelines_once() -> None:
    many = replace(WORK, blocks=4 * 132)
    assert clocks(many) - clocks(replace(many, persistent=True)) == pytest.approx(4 * COSTS["fill"], rel=0.01)


def test_copies_go_on_while_blocks_that_stay_store() -> None:
    stay = replace(WORK, blocks=4 * 132, persistent=True)
    stored = 4 * 1000.0
    assert 0 < clocks(replace(stay, epilogue_clocks=1000.0)) - clocks(stay) < stored
    apart = replace(stay, persistent=False)
    assert clocks(replace(apart, epilogue_clocks=1000.0)) - clocks(apart) == pytest.approx(stored, rel=0.01)


@pytest.mark.parametrize(("parts", "together"), TARGET.clusters)
def test_clusters_run_as_many_at_once_as_the_target_says(parts: int, together: int) -> None:
    inside = replace(WORK, parts=parts, cluster=True, blocks=parts * together)
    assert clocks(replace(inside, blocks=parts * (together + 1))) > 1.5 * clocks(inside)


def test_no_kernel_is_faster_than_memory() -> None:
    least = 1 << 30
    assert clocks(replace(WORK, read_bytes=least)) >= least / (COSTS["dram"] * TARGET.cores)
