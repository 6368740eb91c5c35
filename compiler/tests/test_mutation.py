"""Mutants: well formed, different from the program and from chance to chance the same, at places of every kind."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.pipeline import IRS, Lowering


@pytest.fixture(scope="module")
def lowering() -> Lowering:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(x.bfloat16().float() @ w, dim=-1) + torch.where(w > 0, w, 0.0).sum()

    captured = compiler.capture(f, [torch.randn(6, 19), torch.randn(19, 19)])
    return compiler.lower(captured.program, compiler.target("cpu"))


@pytest.mark.parametrize("stage", compiler.STAGES)
def test_mutants_are_other_programs(lowering: Lowering, stage: str) -> None:
    program: Any = lowering.stages[stage]
    made = compiler.mutants(stage, program, random.Random(7), 60)
    assert len(made) >= (3 if stage == "torch" else 40)
    for what, mutant in made:
        assert what and mutant != program
        if stage in IRS:
            IRS[stage].verify(mutant)
    assert made == compiler.mutants(stage, program, random.Random(7), 60)
    assert made[0] == compiler.mutants(stage, program, random.Random(7), 1)[0]


# fmt: off
KINDS = {
    "torch": ("argument dropped", "tensors exchanged", "number changed"),
    "tensor": ("load index shifted", "last term dropped", "reduction changed", "rounded to bf16", "rounding dropped"),
    "loop": ("store dropped", "accumulation dropped", "last iteration dropped", "constant changed", "ge instead of gt"),
    "tile": ("store shifted", "loop dropped", "slice shifted", "tensor instruction dropped"),
    "kernel": ("accumulator not reset", "wrong lane count", "end one sooner", "call dropped", "reduction changed"),
    "cpp": ("accumulator not reset", "statement dropped", "min instead of max", "constant changed", "address shifted"),
}
# fmt: on


@pytest.mark.parametrize("stage", compiler.STAGES)
def test_every_kind_of_mistake_is_made(lowering: Lowering, stage: str) -> None:
    kinds = {what.split(":")[0] for what, _ in compiler.mutants(stage, lowering.stages[stage], random.Random(1), 5000)}
    assert set(KINDS[stage]) <= kinds
