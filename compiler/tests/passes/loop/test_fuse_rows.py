"""Kernels that hand rows on to each other are one on a GPU where a block a row is enough, else as they were."""

from typing import Any

import pytest

from compiler.execution.expression import capture
from compiler.passes.loop.costs import launch_costs_more
from compiler.pipeline import lower
from compiler.targets.nvidia import SM_90A


def lowered(expression: str, until: str, apart: bool = False) -> Any:
    program = capture(expression, 1)[2].program
    return lower(program, SM_90A, until=until, gate=lambda name, _: not (apart and name == "fuse-rows")).stages[until]


def test_a_sort_is_one_kernel_that_keeps_its_runs_in_shared_memory() -> None:
    made = lowered("torch.sort(torch.randn(64, 1000))", "tile")
    assert len(made.kernels) == 1
    assert not made.temps


def test_rows_too_long_for_a_block_stay_apart_until_few_elements_are_left() -> None:
    apart = lowered("torch.topk(torch.randn(2, 200000), 9)", "loop", apart=True)
    made = lowered("torch.topk(torch.randn(2, 200000), 9)", "loop")
    assert 1 < len(made.kernels) < len(apart.kernels)
    assert made.kernels[0] is apart.kernels[0]


@pytest.mark.parametrize(("rows", "does"), [(1, False), (132, True)])
def test_rows_for_every_multiprocessor_make_one_kernel_worth_while(rows: int, does: bool) -> None:
    """As many loads in one row cost more than a launch."""
    heaviest = lowered("torch.sort(torch.randn(132, 1024))", "loop", apart=True).kernels[0]
    assert launch_costs_more(heaviest, rows, SM_90A) is does
