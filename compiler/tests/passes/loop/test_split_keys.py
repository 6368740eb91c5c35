"""Sums over keys for few queries are split into as many parts as keep the multiprocessors busy."""

from __future__ import annotations

from typing import Any

import pytest

from compiler.execution.expression import capture
from compiler.ir import loop_text
from compiler.pipeline import lower
from compiler.targets import nvidia


def attention(batch: int, heads: tuple[int, int], queries: int, keys: int, width: int, more: str = "") -> str:
    shapes = ((batch, heads[0], queries, width), *[(batch, heads[1], keys, width)] * 2)
    tensors = ", ".join(f"torch.randn({', '.join(map(str, x))}, dtype=torch.bfloat16)" for x in shapes)
    return f"F.scaled_dot_product_attention({tensors}, enable_gqa=True{more})"


def kernels(expression: str) -> Any:
    program = capture(expression, 1)[2].program
    return lower(program, nvidia.SM_90A, until="loop").stages["loop"]


# What is decoded, and the number of parts; 1 if one kernel passes over all keys.
PARTS = {
    "each block of keys, if they are few": (attention(1, (32, 4), 1, 512, 64), 8),
    "two wide blocks for each of 132 multiprocessors": (attention(1, (32, 8), 1, 8192, 128), 32),
    "four narrow blocks": (attention(2, (16, 8), 1, 8192, 64), 32),
    "no more than one combines": (attention(1, (8, 4), 1, 131072, 64), 64),
    "parts of equal size": (attention(1, (8, 8), 1, 64 * 35, 128), 35),
    "every head has keys of its own": (attention(1, (8, 8), 1, 512, 64), 8),
    "three queries": (attention(1, (4, 4), 3, 256, 64), 4),
    "enough heads": (attention(32, (64, 16), 1, 512, 64), 1),
    "sixteen queries": (attention(1, (4, 4), 16, 512, 64), 1),
}


@pytest.mark.parametrize("name", PARTS)
def test_there_is_work_for_all_multiprocessors(name: str) -> None:
    expression, parts = PARTS[name]
    made = kernels(expression)
    text = loop_text.show(made)
    assert len(made.kernels) == (1 if parts == 1 else 2), text
    assert (f"for part in parallel({parts}):" in text) is (parts > 1), text


def test_gradients_need_the_whole_row() -> None:
    expression = attention(1, (4, 4), 1, 512, 64).replace("F.scaled_dot_product_attention(", "ATTENTION(")
    results = "(lambda q, k, v, enable_gqa: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[:2])"
    made = kernels(expression.replace("ATTENTION", results))
    assert "for part in" not in loop_text.show(made)


@pytest.mark.parametrize("mask", ["", ", is_causal=True", ", attn_mask=torch.ones(1, 512, dtype=torch.bool)"])
def test_masks_do_not_change_that(mask: str) -> None:
    made = kernels(attention(1, (4, 2), 1, 512, 64, mask))
    assert "for part in parallel(8):" in loop_text.show(made)
