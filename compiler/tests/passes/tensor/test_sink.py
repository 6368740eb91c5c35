"""Maps are computed where they are read if few of their elements are, and if that saves a tensor."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.execution.expression import capture
from compiler.ir import loop_text
from compiler.passes.tensor import sink
from compiler.pipeline import lower
from compiler.targets.nvidia import SM_90A
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed

PICKED = "(lambda x, t: {0}.gather(1, t[:, None]))(torch.randn(64, 256), torch.randint(0, 256, (64,)))"


def stored(expression: str) -> list[str]:
    """Names of the tensors between kernels, in order."""
    return [t.name for t in lower(capture(expression, 1)[2].program, SM_90A, until="loop").stages["loop"].temps]


def test_a_loss_needs_no_tensor_of_all_logarithms() -> None:
    expression = "F.cross_entropy(torch.randn(8, 64), torch.randint(0, 64, (8,)))"
    program = lower(capture(expression, 1)[2].program, SM_90A, until="loop").stages["loop"]
    assert all(len(t.shape) < 2 for t in program.temps), program.temps


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("torch.exp(x)", []),  # dear, but no one else's
        ("(lambda e: e.sum() + e)(torch.exp(x))", ["exp"]),  # made anyway, and too dear for another time
        ("(x @ x.T @ x).relu()", ["matmul", "relu"]),  # a matmul stores what is made of it as soon as itself
    ],
)
def test_what_is_picked_from_is_stored_where_that_costs_less(made: str, expected: list[str]) -> None:
    names = [n for n in stored(PICKED.format(made)) if not n.startswith("sum")]
    assert names == expected


def test_sizes_that_are_not_known_count_as_equal_ones() -> None:
    """Of each of the rows one element is read, however many rows there are."""
    torch.manual_seed(seed := fresh_seed())
    loss = torch.compile(F.cross_entropy, backend="mlcomp", dynamic=True)
    for rows in (5, 9):
        x, t = torch.randn(rows, 40), torch.randint(0, 40, (rows,))
        torch.testing.assert_close(loss(x, t), F.cross_entropy(x, t), msg=f"{rows} rows, seed {seed}")


@pytest.mark.parametrize("rows", [1, 64])
def test_rows_may_be_empty(rows: int) -> None:
    """Of a map that has no elements none are few: the backward of a softmax reads sums of such rows."""
    x = torch.empty(rows, 0, requires_grad=True)
    made = torch.compile(lambda x: torch.softmax(x, 1), backend="mlcomp", options={"fallback": False})(x)
    made.sum().backward()  # type: ignore[no-untyped-call]
    assert made.shape == x.shape and x.grad is not None


def test_equations_that_read_each_other_twice_may_be_empty() -> None:
    """Of a map without elements another one reads all of them: whether few would do was asked for hours."""
    x = torch.empty(0, 3)
    made = torch.compile(torch.digamma, backend="mlcomp", options={"fallback": False})(x)
    assert made.shape == x.shape


@pytest.mark.parametrize("reads", [2, 3])
def test_chains_that_read_each_other_several_times_stay_short(reads: int) -> None:
    """Written into its reader, each link repeats the one before: 40 of them were never compiled."""
    chain = "torch.arange(64)"
    for _ in range(40):
        chain = f"(lambda t: (t{' ^ (t >> 1)' * (reads - 1)}) & 1023)({chain})"
    program = capture(f"torch.randint(9, (64,)) + {chain}", 1)[2].program
    lowered = lower(program, SM_90A, until="loop").stages["loop"]
    assert len(loop_text.show(lowered)) < 100_000


def test_tensors_that_many_paths_lead_to_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of Runge and Kutta's sums reads the one before it several times, and half of it at once."""
    asked, is_kept = itertools.count(1), sink._is_kept

    def counted(*args: Any) -> bool:
        assert next(asked) < 1e6, "exponentially often"
        return is_kept(*args)

    monkeypatch.setattr(sink, "_is_kept", counted)

    def slope(y: Tensor) -> Tensor:
        return torch.stack([y[1], -y[0].sin()])

    def integrated(y: Tensor) -> Tensor:
        for _ in range(8):
            a = slope(y)
            b = slope(y + 0.05 * a)
            c = slope(y + 0.05 * b)
            y = y + 0.1 / 6 * (a + 2 * b + 2 * c + slope(y + 0.1 * c))
        return y

    torch.manual_seed(seed := fresh_seed())
    y = torch.randn(2, 5)
    torch.testing.assert_close(called(integrated, [y], "cpu"), integrated(y), msg=lambda m: f"{m}, seed {seed}")
