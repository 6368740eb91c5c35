"""Sorting: the Tensor program gives what eager gives, equal elements and NaN included."""

import pytest
import torch

from compiler import frontend
from compiler.interpret import tensor as interpret
from compiler.ir import tensor
from compiler.ir.expr import dim
from compiler.passes.torch_to_tensor import lower
from compiler.passes.torch_to_tensor.first import cheapest_grouping
from compiler.passes.torch_to_tensor.order import run_length
from compiler.tests.eager import array, check, expressions

nan, inf = float("nan"), float("inf")


def inputs() -> dict[str, torch.Tensor]:
    x = torch.randn(3, 17)
    special = x.clone()
    special[0, 3], special[0, 9], special[1, 2], special[1, 5] = nan, nan, inf, -inf
    i = torch.randint(-3, 4, (3, 17))
    return {
        "x": x, "s": special, "i": i, "u": i.abs().to(torch.uint8), "b": i > 0, "h": x.bfloat16().round(),
        "n": torch.tensor(3.0), "z": torch.zeros(0, 3), "across": torch.randn(5, 4, 3).transpose(0, 2),
        "long": torch.randperm(3000).view(2, 1500) / 9, "ties": torch.randint(-9, 9, (2, 2049)),
        "tall": torch.randn(1031, 3),
        "holes": torch.where(torch.rand(3, 1200) < 0.1, nan, torch.randn(3, 1200).round()),
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
    torch.sort(long)
    torch.sort(ties, stable=True)
    torch.sort(ties, stable=True, descending=True)
    torch.sort(holes, stable=True)
    torch.sort(holes, stable=True, descending=True)
    torch.sort(holes.bfloat16(), stable=True)
    torch.sort(tall, stable=True, dim=0)
    long.topk(7)
    long.topk(1)
    tall.topk(50, 0, largest=False)
    tall.topk(9, 0)
    across.topk(4, 1)
    ties.topk(600).values
    holes.topk(130, largest=False).values
"""


@pytest.mark.parametrize("expression", expressions(EXPRESSIONS))
def test_agrees_with_eager(expression: str) -> None:
    check(f"tuple({expression})" if "sort(n" not in expression else f"({expression}[0],)", inputs)


@pytest.mark.parametrize("largest", [True, False])
def test_groups_give_the_first_of_equal_elements(largest: bool) -> None:
    seed = torch.seed()
    few_kinds = torch.multinomial(torch.rand(64, 4) ** 8, 601, True)  # the last group of 601 is short
    x = torch.tensor([nan, inf, -inf, 1.0])[few_kinds]
    program = lower.lower(frontend.capture(lambda x: x.topk(11, largest=largest), (x,)).program)
    _, places = interpret.run(program, [array(x)])
    assert any("best" in e.name for e in tensor.equations(program))
    wanted = x.sort(dim=1, descending=largest, stable=True).indices[:, :11]
    assert places.tolist() == wanted.tolist(), f"seed {seed}"


def test_few_elements_are_counted_and_many_merged() -> None:
    def chosen(rows: int, length: int, kept: int) -> int:
        made = run_length((dim(rows), dim(length)), 1, dim(kept))
        return int(made.value)  # type: ignore[attr-defined]

    assert chosen(64, 64, 8) == 64  # one kernel more costs more than it saves
    assert chosen(1, 300, 300) == 300
    assert chosen(64, 4096, 4096) < 128
    assert chosen(8, 32000, 50) < 128


def test_groups_are_looked_at_where_few_of_many_are_asked_for() -> None:
    def group(n: int, k: int) -> int:
        return cheapest_grouping(n, k, 64.0)[1]

    assert group(4096, 16) and group(32000, 50)
    assert not group(64, 40) and not group(16, 9)
