"""Where kernels end follows from what they compute and from its cost: no planner of schedules is asked."""

from __future__ import annotations

from typing import Any

import pytest

from compiler.errors import CompilerError
from compiler.execution.expression import capture
from compiler.ir import loop_text
from compiler.pipeline import lower, schedules_for
from compiler.schedule.space.cpu import attention
from compiler.schedule.space.gpu import attention as gpu_attention
from compiler.schedule.space.gpu import sequences
from compiler.targets import cpu, nvidia
from compiler.targets.target import Target

SORT = "torch.sort(torch.randn(64, 1000))"


def heads(queries: int, keys: int, width: int, dtype: str = "f32") -> str:
    kind = {"f32": "", "bf16": ", dtype=torch.bfloat16"}[dtype]
    of = [f"torch.randn(1, 2, {n}, {width}{kind})" for n in (queries, keys, keys)]
    return f"F.scaled_dot_product_attention({', '.join(of)})"


def kernels(expression: str, target: Target) -> Any:
    program = capture(expression, 1)[2].program
    return lower(program, target, until="loop").stages["loop"]


# Queries, keys, features, type and target: whether scores stay where they are made.
STAY = {
    "as many queries as a vector has lanes": (heads(8, 33, 16), cpu.AVX2, True),
    "fewer queries than lanes": (heads(7, 33, 16), cpu.AVX2, False),
    "nine queries": (heads(9, 64, 64, "bf16"), nvidia.SM_90A, True),
    "eight queries of few keys": (heads(8, 64, 64, "bf16"), nvidia.SM_90A, True),
    "eight queries of many keys that do not divide": (heads(8, 300, 64, "bf16"), nvidia.SM_90A, False),
    "more features than a warp holds": (heads(64, 64, 160, "bf16"), nvidia.SM_80, False),
    "more features, which groups of warps hold": (heads(64, 64, 160, "bf16"), nvidia.SM_90A, True),
    "as many, for which no group has an instruction": (heads(64, 64, 164, "bf16"), nvidia.SM_90A, False),
    "f32 by groups, scores in the L2": (heads(64, 64, 128), nvidia.SM_90A, False),
    "f32 by groups, narrow": (heads(64, 64, 64), nvidia.SM_90A, True),
    "f32 by groups, scores past the L2": (heads(4096, 4096, 128), nvidia.SM_90A, True),
    "f32 by warps": (heads(64, 64, 128), nvidia.SM_80, True),
}


@pytest.mark.parametrize("name", STAY)
def test_scores_stay_where_that_costs_less(name: str) -> None:
    expression, target, stay = STAY[name]
    made = kernels(expression, target)
    assert (len(made.kernels) == 1) is stay, loop_text.show(made)


@pytest.mark.parametrize("name", [name for name, (_, _, stay) in STAY.items() if stay])
def test_where_they_stay_there_is_a_schedule_for_that(name: str) -> None:
    expression, target, _ = STAY[name]
    made = kernels(expression, target)
    assert "online(" in str([repr(s).lower() for s in schedules_for(made, target).values()])


@pytest.mark.parametrize("target", [cpu.AVX2, nvidia.SM_90A], ids=lambda t: t.name)
@pytest.mark.parametrize("expression", [heads(33, 64, 32), SORT], ids=["attention", "sort"])
def test_kernels_end_where_they_did_if_planners_change(
    expression: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernels(expression, target)

    def asked(*_: Any) -> None:
        raise CompilerError("a planner is asked")

    for planner in (attention, gpu_attention, sequences):
        monkeypatch.setattr(planner, "space", asked)
    assert kernels(expression, target) is before
