"""What `mlcomp run` says of results is what the suite says of them."""

from __future__ import annotations

import random

import pytest
import torch

import compiler
from compiler.execution import truth
from compiler.tests.meaning import fresh_seed
from conformance.judge import ladder, subject
from conformance.shapes.cases import Arg, Case

EXPRESSIONS = (
    "F.softmax(x, dim=-1)", "x @ x.t()", "F.layer_norm(x, (33,))", "(x / x.sum(), x)", "x.cumsum(0), x > 0",
    "x.expm1()", "x.argmax(1), x.double().sum()",
)  # fmt: skip


def case(expr: str, dtype: str) -> Case:
    arg = Arg("x", (7, 33), dtype, "contig", {"kind": "normal"})
    return Case(
        id="case", file="case.toml", line=1, suite="case", op="case", expr=expr, args=(arg,), dims={}, params={},
        consts={}, dtype=dtype, layout="contig", distribution="normal", targets=("cpu",), tier="smoke",
    )  # fmt: skip


def off(x: torch.Tensor, by: float) -> torch.Tensor:
    """The same but for one element: a float is off by a part of itself, another is another."""
    y = x.clone().view(-1)
    at = int(torch.randint(y.numel(), ()))
    y[at] = y[at] * (1 + by) if y.is_floating_point() else ~y[at]
    return y.view(x.shape)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_one_verdict_for_a_run_and_for_a_shape_file(dtype: str) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    for expr in random.Random(seed).sample(EXPRESSIONS, 2):
        made = subject.prepare(case(expr, dtype), seed)
        climbed = ladder.climb(made.program, compiler.target("cpu"))
        theirs = subject.Truth(made, climbed.equations, compiler.accuracy(climbed.lowering))
        results = compiler.execute(climbed.lowering, "tensor", made.tensors)
        right = []
        for given in (results, *([off(x, 2.0**-n) for x in results] for n in range(2, 30, 3))):
            own = truth.judge(made.program, made.tensors, given, climbed.lowering)
            assert own == theirs.judge(given), f"{expr} in {dtype}, seed {seed}"
            right.append(own.ok)
        assert right[0] and not right[1], f"{expr} in {dtype}, seed {seed}: {right}"
