"""Mutants: well formed, different from the program and from chance to chance the same, at places of every kind."""

import functools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.ir.stages import IRS
from compiler.pipeline import Lowering


@functools.cache
def lowering(target: str) -> Lowering:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(x.bfloat16().float() @ w, dim=-1) + torch.where(w > 0, w, 0.0).sum(-1)

    captured = compiler.capture(f, [torch.randn(6, 19), torch.randn(19, 19)])
    return compiler.lower(captured.program, compiler.target(target))


# fmt: off
KINDS = {
    ("cpu", "torch"): ("argument dropped", "tensors exchanged", "number changed"),
    ("cpu", "tensor"):
        ("load index shifted", "last term dropped", "reduction changed", "rounded to bf16", "rounding dropped"),
    ("cpu", "loop"):
        ("store dropped", "accumulation dropped", "last iteration dropped", "constant changed", "ge instead of gt"),
    ("cpu", "tile"): ("store shifted", "loop dropped", "slice shifted", "tensor instruction dropped"),
    ("cpu", "kernel"):
        ("accumulator not reset", "wrong lane count", "end one sooner", "call dropped", "reduction changed"),
    ("cpu", "cpp"):
        ("accumulator not reset", "statement dropped", "min instead of max", "constant changed", "address shifted"),
    ("sm_90a", "tile"): ("store shifted", "loop dropped", "reduction changed"),
    ("sm_90a", "kernel"): ("own value only", "thread or block shifted", "guard dropped", "reduction changed"),
    ("sm_90a", "cuda"): ("thread shifted", "block shifted", "guard dropped", "statement dropped", "reduction changed"),
    ("mlir", "mlir"): ("sub instead of add", "exp2 instead of exp", "another comparison", "constant changed"),
    ("triton", "triton"): ("store dropped", "mask dropped", "reduction changed", "lane shifted", "constant changed"),
}
# fmt: on


@pytest.mark.parametrize(("target", "stage"), KINDS)
def test_mutants_are_other_programs(target: str, stage: str) -> None:
    program: Any = lowering(target).stages[stage]
    made = compiler.mutants(stage, program, random.Random(7), 60)
    assert len(made) >= {"torch": 3, "mlir": 15, "triton": 15}.get(stage, 40)
    for what, mutant in made:
        assert what and mutant != program
        if stage in IRS:
            IRS[stage].verify(mutant)
    assert made == compiler.mutants(stage, program, random.Random(7), 60)
    assert made[0] == compiler.mutants(stage, program, random.Random(7), 1)[0]


@pytest.mark.parametrize(("target", "stage"), KINDS)
def test_every_kind_of_mistake_is_made(target: str, stage: str) -> None:
    program: Any = lowering(target).stages[stage]
    kinds = {what.split(":")[0] for what, _ in compiler.mutants(stage, program, random.Random(1), 5000)}
    assert set(KINDS[target, stage]) <= kinds


def test_barriers_are_dropped_one_at_a_time() -> None:
    text = 'extern "C" __global__ void f(float* __restrict__ x) {\n  x[1] = 0.0f;\n  mlc_block_barrier();\n}\n'
    made = dict(compiler.mutants("cuda", text, random.Random(1), 99))
    assert made["barrier dropped: mlc_block_barrier();"] == text.replace("  mlc_block_barrier();", "")
