"""Schedules that no pass can carry out: the heuristic's are given up for plainer ones, which is told; others raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from compiler import frontend, pipeline
from compiler.errors import Unsupported
from compiler.execution import named
from compiler.execution.expression import capture, program
from compiler.interpret import kernel as kernel_interpreter
from compiler.passes.applications import Application
from compiler.schedule import heuristic
from compiler.schedule.steps import Schedule, ScheduleError, parse
from compiler.targets import cpu, nvidia
from compiler.tests.meaning import fresh_seed

PRODUCT = "torch.randn(7, 8) @ torch.randn(8, 9)"
NAME = "matmul_7x9x8_f32"  # of its kernel
DISTRIBUTED = 'distribute("matmul_", ("i", "j"), into=("i", "j"))'
IMPOSSIBLE = {
    "a step that does not apply": 'pack("nothing", "tile", ("i", "r"), into=("i_tile", "r_tile"))',
    "an instruction that there is none of": DISTRIBUTED + '\ntensorize(("i", "j", "r"), "spell")',
}


def captured(expression: str) -> tuple[Any, list[torch.Tensor], torch.Tensor]:
    function, inputs = program(expression, fresh_seed())
    return frontend.capture(function, inputs).program, list(inputs), function(*inputs)


def choosing(monkeypatch: pytest.MonkeyPatch, schedule: Schedule | Exception) -> None:
    """Let the CPU's heuristic choose this, or raise it."""

    def choose(*_: Any) -> Schedule:
        if isinstance(schedule, Exception):
            raise schedule
        return schedule

    monkeypatch.setattr(heuristic, "choose", choose)


def right(made: pipeline.Lowering, inputs: list[torch.Tensor], expected: torch.Tensor) -> None:
    (got,) = kernel_interpreter.run(made.stages["kernel"], [x.numpy() for x in inputs])
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", IMPOSSIBLE)
def test_what_cannot_be_carried_out_is_given_up_and_told(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, inputs, expected = captured(PRODUCT)
    choosing(monkeypatch, parse(IMPOSSIBLE[how]))
    seen: list[Application] = []
    made = pipeline.lower(given, cpu.AVX2, trace=seen.append)
    ((kernel, reason),) = [(x.kernel, x.reason) for x in made.fallbacks]
    assert kernel == NAME and ("nothing" in reason or "spell" in reason), reason
    assert made.schedules[NAME].steps and made.schedules[NAME] != parse(IMPOSSIBLE[how])
    assert [a.after for a in seen if a.stage == "cpp"] == [made.stages["cpp"]]
    right(made, inputs, expected)


def test_a_heuristic_that_raises_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given, inputs, expected = captured(PRODUCT)
    choosing(monkeypatch, IndexError("out of its depth"))
    made = pipeline.lower(given, cpu.AVX2)
    assert [x.reason for x in made.fallbacks] == ["IndexError: out of its depth"]
    right(made, inputs, expected)


def test_a_refusal_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _, _ = captured(PRODUCT)
    choosing(monkeypatch, Unsupported("aten.matmul", (), "not here"))
    with pytest.raises(Unsupported, match="not here"):
        pipeline.lower(given, cpu.AVX2)


@pytest.mark.parametrize("how", IMPOSSIBLE)
def test_a_schedule_that_was_given_raises(how: str) -> None:
    given, _, _ = captured(PRODUCT)
    with pytest.raises((ScheduleError, KeyError), match=r"nothing|spell"):
        pipeline.lower(given, cpu.AVX2, {NAME: parse(IMPOSSIBLE[how])})


OPERANDS = {
    "broadcast along the sum": "(lambda x: x[:, :1].expand(33, 40))(torch.randn(33, 40)) @ torch.randn(40, 9)",
    "broadcast along the result": "torch.randn(9, 40) @ (lambda x: x[:, :1].expand(40, 33))(torch.randn(40, 33))",
    "gathered": "torch.randn(16, 17)[torch.randint(16, (16,))] @ torch.randn(17, 9)",
    "padded": "F.pad(torch.randn(7, 7), (3, 3)) @ torch.randn(13, 7)",
    "summed": "(torch.randn(33, 6) @ torch.randn(6, 7)).sum()",
    "three factors": "torch.einsum('bij,bjk,bkl->bil', torch.randn(2, 5, 6), torch.randn(2, 6, 7),"
    " torch.randn(2, 7, 4))",
    "rows that a computed index picks": "F.layer_norm(F.embedding(torch.randint(99, (33,)) % 33, torch.randn(33, 33)),"
    " (33,))",
    "attention over equal keys": "F.scaled_dot_product_attention(torch.randn(1, 33, 8), torch.eye(33, 8)[None],"
    " torch.ones(1, 33, 8))",
}


@pytest.mark.parametrize("target", [cpu.AVX512, nvidia.SM_80, nvidia.SM_90A], ids=lambda t: t.name)
@pytest.mark.parametrize("name", OPERANDS)
def test_what_is_chosen_for_operands_of_all_kinds_is_carried_out(name: str, target: Any) -> None:
    given, _, _ = captured(OPERANDS[name])
    assert pipeline.lower(given, target).fallbacks == ()


MASKED = "F.scaled_dot_product_attention({q}, {k}, {k}, {how})"


@pytest.mark.parametrize(
    ("target", "dtype", "how"),
    [("cpu:avx2", "float32", "attn_mask=torch.randn(2, 1, 1, 17)"), ("cpu:baseline", "float64", "is_causal=True")],
)
def test_masked_attention_keeps_its_schedule(target: str, dtype: str, how: str) -> None:
    q, k = (f"torch.randn(2, 3, {n}, 8, dtype=torch.{dtype})" for n in (9, 17))
    made = pipeline.lower(capture(MASKED.format(q=q, k=k, how=how), 0)[2].program, named.target(target))
    assert made.fallbacks == ()
