"""Cells of recurrent networks, which PyTorch has as kernels on GPUs: one step from the products of input and state.

Each gate has `H` columns in products of shape (N, gates * H). All is computed in f32 at least, and rounded at the end.
A workspace has what the gradient needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from compiler.frontend.types import widened


def _biased(products: Tensor, bias: Tensor | None) -> Tensor:
    return widened(products) if bias is None else widened(products) + widened(bias)


def _lstm(
    input_products: Tensor, state_products: Tensor, cell: Tensor, input_bias: Tensor | None = None,
    state_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The new state, the new cell, and the gates (N, 4 * H): input, forget, candidate, output."""
    sums = _biased(input_products, input_bias) + _biased(state_products, state_bias)
    i, f, g, o = sums.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new_cell = f * widened(cell) + i * g
    results = o * new_cell.tanh(), new_cell, torch.cat([i, f, g, o], 1)
    return tuple(x.to(cell.dtype) for x in results)


def _lstm_backward(
    state_grad: Tensor | None, cell_grad: Tensor | None, cell: Tensor, new_cell: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    """The gradients of the sums of the products, of the cell, and of each bias."""
    if state_grad is None and cell_grad is None:
        return None, None, None
    i, f, g, o = widened(gates).chunk(4, 1)
    old, new = widened(cell), widened(new_cell).tanh()
    from_state = torch.zeros_like(new) if state_grad is None else widened(state_grad)
    to_cell = from_state * o * (1 - new * new)
    if cell_grad is not None:
        to_cell = to_cell + widened(cell_grad)
    sums = [
        to_cell * g * i * (1 - i), to_cell * old * f * (1 - f), to_cell * i * (1 - g * g),
        from_state * new * o * (1 - o),
    ]  # fmt: skip
    sums_grad = torch.cat(sums, 1).to(gates.dtype)
    return sums_grad, (to_cell * f).to(cell.dtype), sums_grad.sum(0) if has_bias else None


def _gru(
    input_products: Tensor, state_products: Tensor, state: Tensor, input_bias: Tensor | None = None,
    state_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The new state, and (N, 5 * H): the reset gate, update gate, candidate, state, and the candidate's product."""
    input_r, input_z, input_n = _biased(input_products, input_bias).chunk(3, 1)
    state_r, state_z, state_n = _biased(state_products, state_bias).chunk(3, 1)
    r, z = (input_r + state_r).sigmoid(), (input_z + state_z).sigmoid()
    n, old = (input_n + r * state_n).tanh(), widened(state)
    workspace = torch.cat([r, z, n, old, state_n], 1)
    return (n + z * (old - n)).to(state.dtype), workspace.to(state.dtype)


def _gru_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """The gradients of the products of the input, those of the state, the state, and both biases."""
    r, z, n, old, state_n = widened(workspace).chunk(5, 1)
    new = widened(grad)
    update, candidate = new * (old - n) * z * (1 - z), new * (1 - z) * (1 - n * n)
    reset = candidate * state_n * r * (1 - r)
    inputs, states = (
        torch.cat([reset, update, last], 1).to(grad.dtype) for last in (candidate, candidate * r)
    )  # fmt: skip
    biases = (inputs.sum(0), states.sum(0)) if has_bias else (None, None)
    return inputs, states, (new * z).to(grad.dtype), *biases


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell.default": _lstm, "_thnn_fused_lstm_cell_backward_impl.default": _lstm_backward,
    "_thnn_fused_gru_cell.default": _gru, "_thnn_fused_gru_cell_backward.default": _gru_backward,
}  # fmt: skip
