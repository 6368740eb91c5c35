"""Cells of recurrent networks that are kernels on GPUs: their definitions compute what PyTorch's modules compute."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler.frontend import recurrent_cells
from compiler.tests.meaning import fresh_seed

N, INPUTS, H = 3, 4, 5


def inputs(cell: nn.Module, has_bias: bool) -> tuple[list[Tensor], list[Any], Tensor]:
    """The products of input and state with gradients, the biases, and the input, for the weights of a module."""
    weights: list[Any] = [*cell.parameters()]
    x, state = torch.randn(N, INPUTS, dtype=torch.float64), torch.randn(N, H, dtype=torch.float64)
    products = [x @ weights[0].t(), state @ weights[1].t()]
    leaves = [p.detach().requires_grad_() for p in products]
    return [*leaves, state], weights[2:] if has_bias else [None, None], x


@pytest.mark.parametrize("has_bias", [True, False])
def test_lstm(has_bias: bool) -> None:
    torch.manual_seed(fresh_seed())
    module = nn.LSTMCell(INPUTS, H, bias=has_bias, dtype=torch.float64)
    (a, b, state), biases, x = inputs(module, has_bias)
    cell = torch.randn(N, H, dtype=torch.float64, requires_grad=True)
    new_state, new_cell, gates = recurrent_cells._lstm(a, b, cell, *biases)
    torch.testing.assert_close((new_state, new_cell), module(x, (state, cell)))
    tangents = torch.randn_like(new_state), torch.randn_like(new_cell)
    for given in ((tangents[0], tangents[1]), (tangents[0], None), (None, tangents[1])):
        expected = torch.autograd.grad(
            [y for y, t in zip((new_state, new_cell), given, strict=True) if t is not None],
            [a, cell, *([biases[0]] if has_bias else [])],
            [t for t in given if t is not None],
            retain_graph=True,
        )
        found = recurrent_cells._lstm_backward(given[0], given[1], cell, new_cell, gates, has_bias)
        torch.testing.assert_close([*found[: len(expected)]], [*expected])
        assert (found[2] is None) == (not has_bias)
    assert recurrent_cells._lstm_backward(None, None, cell, new_cell, gates, has_bias) == (None, None, None)


@pytest.mark.parametrize("has_bias", [True, False])
def test_gru(has_bias: bool) -> None:
    torch.manual_seed(fresh_seed())
    module = nn.GRUCell(INPUTS, H, bias=has_bias, dtype=torch.float64)
    (a, b, state), biases, x = inputs(module, has_bias)
    state.requires_grad_()
    new_state, workspace = recurrent_cells._gru(a, b, state, *biases)
    torch.testing.assert_close(new_state, module(x, state))
    tangent = torch.randn_like(new_state)
    expected = torch.autograd.grad(new_state, [a, b, state, *(biases if has_bias else [])], tangent)
    found = recurrent_cells._gru_backward(tangent, workspace, has_bias)
    torch.testing.assert_close([*found[: len(expected)]], [*expected])
    assert (found[3:] == (None, None)) == (not has_bias)


def test_halves_are_rounded_once() -> None:
    torch.manual_seed(fresh_seed())
    a, b, cell = (torch.randn(N, n * H).bfloat16() for n in (4, 4, 1))
    results = recurrent_cells._lstm(a, b, cell)
    exact = recurrent_cells._lstm(a.float(), b.float(), cell.float())
    assert all(torch.equal(x, y.bfloat16()) for x, y in zip(results, exact, strict=True))
