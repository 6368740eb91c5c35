"""Kernels bound by memory: each way in which the heuristic spreads them over threads, under the emulator's checks."""

import pytest
import torch
from torch.utils import _pytree as pytree

from compiler import pipeline
from compiler.execution import executable, expression
from compiler.targets.nvidia import SM_90A
from compiler.tests.meaning import fresh_seed

SMALL = {
    "pointwise of mixed types": "torch.randn(30, 96, dtype=torch.bfloat16) + torch.randn(96)",
    "transpose": "torch.randn(64, 96).t() * torch.randn(96, 64)",
    "transpose of 16 bits": "torch.randn(2, 64, 128, dtype=torch.bfloat16).transpose(1, 2).contiguous()",
    "rows of a warp": "F.softmax(torch.randn(600, 40), -1)",
    "row in registers": "F.layer_norm(torch.randn(3, 2048), (2048,), torch.randn(2048))",
    "row in shared memory": "F.softmax(torch.randn(2, 40000), -1)",
    "row read again": "torch.randn(2, 70000).var(-1)",
    "few columns": "torch.randn(1024, 256).mean(0)",
    "columns of warps": "F.softmax(torch.randn(300, 64), 0)",
    "columns of warps between": "torch.randn(2, 130, 96, dtype=torch.bfloat16).var(1)",
    "first greatest of columns": "torch.randint(0, 5, (200, 64)).argmax(0)",
    "columns between": "torch.randn(3, 200, 34).amax(1)",
    "one value": "torch.randn(100, 1000).norm()",
    "few long rows": "torch.randn(3, 20001).mean(-1)",
    "running total": "torch.randn(3, 5, 1000).cumsum(-1)",
    "running total of few": "torch.randn(9001).cumsum(0) / 32",
    "running total of columns": "torch.randn(2, 200, 40).cumsum(1) / 32",
    "running total in rounds": "torch.randn(70, 20004).cumsum(-1) / 64",
    "running greatest": "torch.randn(70, 100).cummax(-1)",
    "first greatest": "torch.randint(0, 5, (20, 700)).argmax(-1)",
    "windows": "F.max_pool2d(torch.randn(2, 64, 34, 34), 3, 2, 1)",
    "rows picked": "F.embedding(torch.randint(0, 50, (4, 6)), torch.randn(50, 256))",
}


@pytest.mark.parametrize("code", SMALL.values(), ids=SMALL)
def test_family(code: str) -> None:
    seed = fresh_seed()
    with torch.no_grad():
        function, inputs, captured = expression.capture(code, seed)
        lowering = pipeline.lower(captured.program, SM_90A)
        outcome = executable.execute_guarded(lowering, inputs, stage="kernel", emulate=True)
        wanted = pytree.tree_leaves(function(*inputs))
    assert not outcome.complaints, f"seed {seed}: {outcome.complaints}"
    assert outcome.same, f"seed {seed}: runs differ"
    for made, eager in zip(outcome.outputs, wanted, strict=True):
        torch.testing.assert_close(made.reshape(eager.shape), eager, msg=lambda m: f"{m}\nseed {seed}")
