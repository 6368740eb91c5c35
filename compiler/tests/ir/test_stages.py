"""Every stage reads back from its text, verifies, and means what the program meant before."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from compiler import frontend, pipeline
from compiler.execution.expression import program
from compiler.ir.stages import IRS
from compiler.passes.applications import Application
from compiler.targets import cpu
from compiler.tests.meaning import Disagreement, fresh_seed, same_meaning
from compiler.tests.random_program import Shown, programs

# Of shapes/: the sizes that are measured. These are lowered, not run.
MEASURED = {
    "matmul": "torch.matmul(torch.randn(512, 1024), torch.randn(1024, 1024))",
    "batched matmul": "torch.matmul(torch.randn(12, 128, 64), torch.randn(12, 64, 128))",
    "rms_norm": "F.rms_norm(torch.randn(1, 32, 2048), (2048,), torch.randn(2048), eps=1e-6)",
    "softmax": "F.softmax(torch.randn(512, 4096), dim=-1)",
    "silu_mul": "F.silu(torch.randn(512, 5632)) * torch.randn(512, 5632)",
    "attention": "F.softmax(torch.randn(1, 12, 64, 64) @ torch.randn(1, 12, 64, 64).transpose(-2, -1) * 0.125"
    " + torch.randn(64, 64), dim=-1) @ torch.randn(1, 12, 64, 64)",
    "causal attention": "F.scaled_dot_product_attention(torch.randn(1, 8, 64, 32), torch.randn(1, 4, 64, 32),"
    " torch.randn(1, 4, 64, 32), is_causal=True, enable_gqa=True)",
    "residual": "torch.matmul(torch.randn(128, 768), torch.randn(768, 768)) + torch.randn(128, 768)",
    "layer_norm": "F.layer_norm(torch.randn(512, 768), (768,), torch.randn(768), torch.randn(768))",
    "conv2d": "F.relu(F.conv2d(torch.randn(1, 64, 56, 56), torch.randn(64, 64, 3, 3), padding=1))",
    "max_pool2d": "F.max_pool2d(torch.randn(1, 64, 112, 112), 3, 2, 1)",
    "embedding": "F.embedding(torch.randint(1000, (2, 64)), torch.randn(1000, 256))",
}
# The same ways of computing, small enough for every interpreter.
SMALL = {
    "matmul": "torch.matmul(torch.randn(7, 9), torch.randn(9, 18)).relu() + torch.randn(18)",
    "sixteen bits": "torch.matmul(torch.randn(5, 8, dtype=torch.bfloat16), torch.randn(8, 6, dtype=torch.bfloat16))",
    "softmax": "F.softmax(torch.randn(3, 5, 7), 1), F.log_softmax(torch.randn(4, 19), -1)",
    "norms": "F.layer_norm(torch.randn(5, 12), (12,), torch.randn(12)), F.group_norm(torch.randn(2, 6, 5), 3)",
    "residual": "(lambda r: (r, F.rms_norm(r, (16,))))(torch.randn(4, 16) + torch.randn(4, 16))",
    "attention": "F.scaled_dot_product_attention(torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8),"
    " torch.randn(1, 2, 6, 8), is_causal=True, enable_gqa=True)",
    "convolution": "F.conv2d(torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 2), padding=1, stride=(1, 2))",
    "pools": "F.max_pool2d(torch.randn(1, 2, 7, 6), 3, 2, 1), F.avg_pool1d(torch.randn(2, 3, 8), 3, 2)",
    "indices": "F.embedding(torch.randint(4, (2, 3)), torch.randn(4, 5)), torch.randn(4, 6).argmax(-1),"
    " torch.randn(4, 3).index_add(0, torch.randint(3, (5,)), torch.randn(5, 3))",
    "views": "torch.cat([torch.randn(3, 4).T, torch.randn(4, 3)], 1).flip(0).reshape(3, 8)[:, 1::2],"
    " F.pad(torch.randn(3, 4), (1, 2, 0, 1), value=2.0)",
    "scans": "torch.randn(3, 8).cumsum(1), torch.randn(3, 8).cummax(0)[0]",
    "integers": "torch.randint(9, (4, 5)) // 3 % 2, (torch.randint(9, (4, 5)) > 4).sum(1)",
}
NATIVE = ("matmul", "residual", "views")  # Loop IR also by its own executor, which runs the C++ compiler


def lowered(source: str, given: Any) -> list[Application]:
    seen: list[Application] = []
    pipeline.lower(given, cpu.AVX2, source=source, until="kernel", trace=seen.append)
    return seen


def captured(expression: str) -> Any:
    function, inputs = program(expression, fresh_seed())
    with torch.no_grad():
        return frontend.capture(function, inputs).program


def check_text(stage: str, p: Any) -> None:
    ir = IRS[stage]
    ir.verify(p)
    assert ir.parse(ir.show(p)) is p, f"the text of this {stage} program does not read back:\n{ir.show(p)}"


@pytest.mark.parametrize("name", MEASURED)
def test_every_stage_reads_back(name: str) -> None:
    given = captured(MEASURED[name])
    check_text("torch", given)
    for a in lowered("torch", given):
        check_text(a.stage, a.after)


@pytest.mark.parametrize("name", SMALL)
def test_every_pass_keeps_the_meaning(name: str) -> None:
    first, *rest = lowered("torch", captured(SMALL[name]))
    seed = fresh_seed()
    for a in rest:
        check_text(a.stage, a.after)
        same_meaning(("tensor", first.after), (a.stage, a.after), seed, native=name in NATIVE)


@settings(max_examples=40, deadline=None)
@given(programs())
def test_random_programs_keep_their_meaning(shown: Shown) -> None:
    p, seed = shown.program, fresh_seed()
    check_text("tensor", p)
    for a in lowered("tensor", p):
        check_text(a.stage, a.after)
        try:
            same_meaning(("tensor", p), (a.stage, a.after), seed)
        except Disagreement as problem:
            raise Disagreement(f"{a.name}: {problem}\n{IRS[a.stage].show(a.after)}") from problem
