"""Attention with a function of its scores, scans and forward gradients: compiled by their definitions on tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import compiler
from compiler.backend import FallbackWarning

ROWS = 24


def _causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < 9)


def distance(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (i - j) * 0.1 * (h + 1)


def prefix(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where((i >= j) | (j < 3), 20 * torch.tanh(score / 20), -float("inf"))


def attended(q: Tensor, k: Tensor, v: Tensor) -> list[Any]:
    mask = create_block_mask(_causal, 1, 1, q.shape[2], k.shape[2], device="cpu")
    made = [flex_attention(q, k, v, score_mod=mod) for mod in (distance, prefix)]
    shared = flex_attention(q, k[:, :1], v[:, :1], enable_gqa=True, block_mask=mask, return_lse=True)
    return [*made, shared, flex_attention(q.mT.contiguous().mT, k, v, scale=0.5)]


def biased(q: Tensor, bias: Tensor) -> Tensor:
    bias.add_(1)
    made = flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + bias[h, j])
    assert isinstance(made, Tensor)
    return made * bias.sum()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("target", [None, "sm_90a"])
def test_attention_with_a_function_of_its_scores(target: str | None, seed: int) -> None:
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, 2, ROWS, 16) for _ in range(3))
    options: dict[str, Any] = {"fallback": "error", "target": target}
    compiled: Any = torch.compile(attended, backend="mlcomp", options=options)
    torch.testing.assert_close(compiled(q, k, v), attended(q, k, v), rtol=1e-4, atol=1e-4)
    with_bias: Any = torch.compile(biased, backend="mlcomp", options=options)
    mine, theirs = torch.ones(2, ROWS), torch.ones(2, ROWS)
    torch.testing.assert_close(with_bias(q, mine), biased(q, theirs), rtol=1e-4, atol=1e-3)
    assert torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_is_one_kernel(seed: int) -> None:
    torch.manual_seed(seed)
    given = [torch.randn(1, 2, ROWS, 16) for _ in range(3)]
    function: Callable[..., Any] = lambda q, k, v: flex_attention(q, k, v, score_mod=prefix)  # noqa: E731
    made = compiler.compile(function, given)
    torch.testing.assert_close(made(*given), function(*given), rtol=1e-4, atol=1e-4)
    assert made.kernels == 1


def stepped(x: Tensor) -> Any:
    return scan(lambda state, y: (state * 0.5 + y, (state * y).sin()), torch.zeros(3), x)


@pytest.mark.parametrize("steps", [1, 5])
def test_scans(steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(steps, 3)
    compiled: Any = torch.compile(stepped, backend="mlcomp", options={"fallback": "error"}, dynamic=False)
    torch.testing.assert_close(compiled(x), stepped(x))
    torch.testing.assert_close(compiler.compile(stepped, [x])(x), stepped(x))


def test_forward_gradients_of_strided_arguments(seed: int) -> None:
    torch.manual_seed(seed)
    function = torch.func.hessian(lambda x, w: torch.tanh(x @ w).sum())
    x, w = torch.randn(8)[::2], torch.randn(4, 3)
    compiled: Any = torch.compile(function, backend="mlcomp", options={"fallback": "error"})
    torch.testing.assert_close(compiled(x, w), function(x, w))


def test_long_scans_run_in_eager() -> None:
    x = torch.randn(100, 3)
    with pytest.warns(FallbackWarning, match="scan"):
        torch.testing.assert_close(torch.compile(stepped, backend="mlcomp", dynamic=False)(x), stepped(x))
