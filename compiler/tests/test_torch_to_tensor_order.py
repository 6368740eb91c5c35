"""Sorting: the Tensor program gives what eager gives, equal elements and NaN included."""

import pytest
import torch

from compiler.tests.eager import check, expressions

nan, inf = float("nan"), float("inf")


def inputs() -> dict[str, torch.Tensor]:
    x = torch.randn(3, 17)
    special = x.clone()
    special[0, 3], special[0, 9], special[1, 2], special[1, 5] = nan, nan, inf, -inf
    i = torch.randint(-3, 4, (3, 17))
    return {
        "x": x, "s": special, "i": i, "u": i.abs().to(torch.uint8), "b": i > 0, "h": x.bfloat16().round(),
        "n": torch.tensor(3.0), "z": torch.zeros(0, 3), "across": torch.randn(5, 4, 3).transpose(0, 2),
    }  # fmt: skip


# Of equal elements torch says only here which comes first.
EXPRESSIONS = """
    torch.sort(s, stable=True)
    torch.sort(s, stable=True, descending=True)
    torch.sort(i, stable=True)
    torch.sort(i, stable=True, descending=True, dim=0)
    torch.sort(u, stable=True)
    torch.sort(b, stable=True, descending=True)
    torch.sort(h, stable=True)
    torch.sort(n)
    torch.sort(z, 0)
    x.sort(-1, True)
    across.sort(1)
    torch.argsort(x, 0)
    torch.msort(x)
    x.topk(4)
    x.topk(2, 0, largest=False)
    s.topk(17).values
    i.topk(5).values
    x.topk(0)
    n.topk(1)
    across.topk(2, -1)
"""


@pytest.mark.parametrize("expression", expressions(EXPRESSIONS))
def test_agrees_with_eager(expression: str) -> None:
    check(f"tuple({expression})" if "sort(n" not in expression else f"({expression}[0],)", inputs)
