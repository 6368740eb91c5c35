"""Spaces of schedules: more than one member, lazy, the cheapest first and chosen; members compute what eager does."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from compiler import pipeline
from compiler.execution import executable, expression
from compiler.schedule.space import members as m
from compiler.schedule.steps import Schedule
from compiler.targets import cpu, nvidia
from compiler.targets.target import Target
from compiler.tests.meaning import fresh_seed

TARGETS = {t.name: t for t in (cpu.AVX2, cpu.AVX512, nvidia.SM_80, nvidia.SM_90A)}
# A kernel of each family that there is, by the name of the family; long sums are of integers, which are exact.
FAMILIES = {
    "pointwise": "torch.randn(30, 96, dtype=torch.bfloat16) + torch.randn(96)",
    "pointwise, a copy in another order": "torch.randn(64, 96).t() * torch.randn(96, 64)",
    "rows": "F.layer_norm(torch.randn(6, 200), (200,), torch.randn(200))",
    "rows, of the outer axis": "torch.randint(-9, 9, (300, 64), dtype=torch.float32).sum(0)",
    "rows, of an outer axis that nothing divides": "torch.randint(-9, 9, (77, 296), dtype=torch.float32).sum(0)",
    "rows, of channels within pixels": "(lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w, padding=1, groups=16))("
    "torch.randint(-3, 3, (2, 6, 28, 16)).float(), torch.randint(-3, 3, (16, 1, 3, 3)).float())",
    "rows, of windows": "F.conv2d(torch.randint(-3, 3, (1, 3, 12, 23), dtype=torch.float32),"
    " torch.randint(-3, 3, (3, 1, 3, 3), dtype=torch.float32), padding=1, groups=3)",
    "pointwise, of a warp's rows": "(lambda x: F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2))("
    "torch.randn(1, 6, 8, 264, dtype=torch.bfloat16))",
    "scans": "torch.randint(-9, 9, (3, 5, 100), dtype=torch.float32).cumsum(-1)",
    "scans, of the outer axis": "torch.randint(-9, 9, (90, 40), dtype=torch.float32).cumsum(0)",
    "contractions": "torch.randint(-9, 9, (48, 64), dtype=torch.float32)"
    " @ torch.randint(-9, 9, (64, 96), dtype=torch.float32)",
    "contractions of 16 bits": "torch.randint(-9, 9, (2, 40, 64), dtype=torch.bfloat16).float()"
    " @ torch.randint(-9, 9, (2, 64, 48), dtype=torch.bfloat16).float()",
    "convolutions": "F.conv2d(torch.randint(-3, 3, (1, 64, 6, 6), dtype=torch.float16),"
    " torch.randint(-3, 3, (64, 64, 3, 3), dtype=torch.float16), padding=1)",
    "attention": "F.scaled_dot_product_attention(torch.randn(1, 2, 32, 64), torch.randn(1, 2, 64, 64),"
    " torch.randn(1, 2, 64, 64))",
    "sequences": "torch.randn(6, 40).sort(-1)[0]",
}
DRAWN = 3  # members that a run tries of each space
FIRST = 200  # members that it draws from


def lowered(code: str, target: Target, seed: int, schedules: Any = None) -> tuple[pipeline.Lowering, list[Any], Any]:
    with torch.no_grad():
        function, inputs, captured = expression.capture(code, seed)
        return pipeline.lower(captured.program, target, schedules), inputs, function(*inputs)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_members_of_which_the_cheapest_is_chosen(family: str, name: str) -> None:
    made, _, _ = lowered(FAMILIES[family], TARGETS[name], 0)
    program = made.stages["loop"]
    for k in program.kernels:
        found = list(itertools.islice(pipeline.space(program, k, TARGETS[name]), FIRST))
        assert len(found) > 1
        assert len({x.family for x in found}) == 1
        assert found[0].schedule == made.schedules[k.name]
        costs = [x.cost for x in found]
        assert costs == sorted(costs) and costs[0] > 0
        drawn = [x.schedule for x in found]
        assert len(set(drawn)) == len(drawn), "two members are the same schedule"


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_members_compute_what_eager_does(family: str, name: str) -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    made, inputs, wanted = lowered(FAMILIES[family], TARGETS[name], seed)
    program = made.stages["loop"]
    spaces = {k.name: list(itertools.islice(pipeline.space(program, k, TARGETS[name]), FIRST)) for k in program.kernels}
    for _ in range(DRAWN):
        chosen = {kernel: rng.choice(found).schedule for kernel, found in spaces.items()}
        tried, _, _ = lowered(FAMILIES[family], TARGETS[name], seed, chosen)
        for stage in ("tile", "kernel"):
            outputs = executable.execute(tried, stage, inputs)
            for got, eager in zip(outputs, pytree.tree_leaves(wanted), strict=True):
                torch.testing.assert_close(got.reshape(eager.shape), eager, msg=partial(_told, seed, stage, chosen))


def _told(seed: int, stage: str, chosen: dict[str, Schedule], problem: str) -> str:
    return f"{problem}\nseed {seed}, {stage}, with {chosen}"


# One buffer is both factors; what is copied into another order beforehand takes shared memory of a launch of its own.
CONV = "F.conv2d(torch.randn(2, 64, 10, 10, dtype=torch.half), torch.randn(64, 64, 3, 3, dtype=torch.half))"


UPDATES = "torch.zeros(9, 40).index_add(0, torch.randint(0, 9, (70,)), torch.randn(70, 40))"


@pytest.mark.parametrize("code", ["(lambda x: x @ x)(torch.randn(96, 96))", CONV, UPDATES])
def test_every_member_is_legal(code: str) -> None:
    made, _, _ = lowered(code, nvidia.SM_90A, 0)
    program = made.stages["loop"]
    kernel = program.kernels[-1]
    for x in pipeline.space(program, kernel, nvidia.SM_90A):
        pipeline.lower(program, nvidia.SM_90A, {kernel.name: x.schedule}, source="loop", until="tile")


@pytest.mark.parametrize("family", ["contractions", "convolutions", "attention", "sequences"])
def test_special_families_of_a_gpu_are_named(family: str) -> None:
    code = "torch.sort(torch.randn(64, 1000))" if family == "sequences" else FAMILIES[family]
    made, _, _ = lowered(code, nvidia.SM_90A, 0)
    program = made.stages["loop"]
    assert family in {next(pipeline.space(program, k, nvidia.SM_90A)).family for k in program.kernels}


def test_the_first_member_comes_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, _ = lowered(FAMILIES["rows"], cpu.AVX2, 0)
    program = made.stages["loop"]
    found = pipeline.space(program, program.kernels[0], cpu.AVX2)
    asked: list[Schedule] = []
    shown = m.Planned.schedule.func  # type: ignore[attr-defined]

    def schedule(planned: m.Planned) -> Schedule:
        asked.append(shown(planned))
        return asked[-1]

    monkeypatch.setattr(m.Planned, "schedule", property(schedule))
    first = next(found)
    assert not asked
    assert first.schedule is asked[-1]


@pytest.mark.parametrize("code", ["torch.randn(3, 0, 2) * 2 + 1", "torch.softmax(torch.randn(0, 5), -1)"])
def test_kernels_of_no_elements_have_schedules(code: str) -> None:
    made, _, _ = lowered(code, nvidia.SM_90A, 0)
    assert not made.fallbacks
