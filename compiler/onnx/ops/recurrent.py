"""Recurrent layers, unrolled over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.errors import Unsupported
from compiler.onnx.ops.row import Row, row

Activation = Callable[[Tensor], Tensor]
# By name: the defaults of alpha and beta, and the function.
_ACTIVATIONS: dict[str, tuple[float, float, Callable[[Tensor, float, float], Tensor]]] = {
    "affine": (1.0, 0.0, lambda x, a, b: a * x + b),
    "elu": (1.0, 0.0, lambda x, a, b: F.elu(x, a)),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: torch.clamp(a * x + b, 0, 1)),
    "leakyrelu": (0.01, 0.0, lambda x, a, b: F.leaky_relu(x, a)),
    "relu": (0.0, 0.0, lambda x, a, b: torch.relu(x)),
    "scaledtanh": (1.0, 1.0, lambda x, a, b: a * torch.tanh(b * x)),
    "sigmoid": (0.0, 0.0, lambda x, a, b: torch.sigmoid(x)),
    "softplus": (0.0, 0.0, lambda x, a, b: F.softplus(x)),
    "softsign": (0.0, 0.0, lambda x, a, b: x / (1 + x.abs())),
    "tanh": (0.0, 0.0, lambda x, a, b: torch.tanh(x)),
    "thresholdedrelu": (1.0, 0.0, lambda x, a, b: torch.where(x > a, x, 0)),
}


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None
) -> list[Activation]:
    remaining_alphas, remaining_betas = iter(alphas), iter(betas)

    def activation(name: str) -> Activation:
        if name.lower() not in _ACTIVATIONS:
            raise Unsupported("onnx activation", (name,), f"known are {', '.join(_ACTIVATIONS)}")
        alpha, beta, f = _ACTIVATIONS[name.lower()]
        a, b = next(remaining_alphas, alpha), next(remaining_betas, beta)
        return lambda x: f(x if clip is None else torch.clamp(x, -clip, clip), a, b)

    return [activation(name) for name in names]


State = tuple[Tensor, ...]  # the hidden state and, for an LSTM, the cell state


def _rnn(x: Tensor, state: State, r: Tensor, rb: Tensor, peepholes: None, act: Sequence[Activation]) -> State:
    return (act[0](x + state[0] @ r.t() + rb),)


def _gru(
    before_reset: bool, x: Tensor, state: State, r: Tensor, rb: Tensor, peepholes: None, act: Sequence[Activation]
) -> State:
    (h,) = state
    (xz, xr, xh), (rz, rr, rh), (bz, br, bh) = x.chunk(3, -1), r.chunk(3), rb.chunk(3)
    z, reset = act[0](xz + h @ rz.t() + bz), act[0](xr + h @ rr.t() + br)
    inner = reset * (h @ rh.t() + bh) if before_reset else (reset * h) @ rh.t() + bh
    return ((1 - z) * act[1](xh + inner) + z * h,)


def _lstm(
    coupled: bool, x: Tensor, state: State, r: Tensor, rb: Tensor, peepholes: Tensor | None, act: Sequence[Activation]
) -> State:
    h, c = state
    i, o, f, g = (x + h @ r.t() + rb).chunk(4, -1)
    pi, po, pf = peepholes.chunk(3) if peepholes is not None else (torch.zeros((), dtype=x.dtype),) * 3
    i = act[0](i + pi * c)
    f = 1 - i if coupled else act[0](f + pf * c)
    c = f * c + i * act[1](g)
    return act[2](c) * act[0](o + po * c), c


def _run_layer(
    step: Callable[..., State], gates: int, default_activations: Sequence[str], state_count: int, x: Tensor, w: Tensor,
    r: Tensor, b: Tensor | None, lengths: Tensor | None, initial_states: Sequence[Tensor | None],
    peepholes: Tensor | None, attributes: dict[str, Any],
) -> tuple[Tensor, ...]:  # fmt: skip
    """All directions: the hidden states of all steps, then the last states."""
    x = x.transpose(0, 1) if attributes["layout"] else x
    start_states = [s.transpose(0, 1) if attributes["layout"] and s is not None else s for s in initial_states]
    time, batch, _ = x.shape
    directions, hidden = r.shape[0], r.shape[2]
    names = attributes["activations"] or [*default_activations] * directions
    acts = _activations(
        names, attributes["activation_alpha"] or (), attributes["activation_beta"] or (), attributes["clip"]
    )
    zero = torch.zeros(batch, hidden, dtype=x.dtype)
    sequences, final_states = [], []
    for d in range(directions):
        act = acts[d * len(default_activations) : (d + 1) * len(default_activations)]
        wb, rb = b[d].chunk(2) if b is not None else (torch.zeros(gates * hidden, dtype=x.dtype),) * 2
        contributions = x @ w[d].t() + wb
        state: State = tuple(zero if s is None else s[d] for s in start_states[:state_count])
        backwards = d == 1 or attributes["direction"] == "reverse"
        hidden_at: dict[int, Tensor] = {}
        for t in reversed(range(time)) if backwards else range(time):
            new = step(contributions[t], state, r[d], rb, None if peepholes is None else peepholes[d], act)
            hidden_at[t] = new[0]
            if lengths is not None:
                is_active = (t < lengths).unsqueeze(-1)
                new = tuple(torch.where(is_active, a, s) for a, s in zip(new, state, strict=True))
                hidden_at[t] = torch.where(is_active, hidden_at[t], zero)
            state = new
        sequences.append(torch.stack([hidden_at[t] for t in range(time)]))
        final_states.append(state)
    sequence = torch.stack(sequences, 1)
    last_states = [torch.stack([e[n] for e in final_states]) for n in range(state_count)]
    if attributes["layout"]:
        return sequence.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in last_states)
    return sequence, *last_states


def _layer_row(
    step: Callable[..., Any], gates: int, default_activations: Sequence[str], state_count: int, option: str
) -> Row:
    def layer(
        x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
        h: Tensor | None = None, c: Tensor | None = None, peepholes: Tensor | None = None, *,
        activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None,
        clip: float | None = None, direction: str = "forward",
        hidden_size: int = 0, layout: int = 0, linear_before_reset: int = 0, input_forget: int = 0,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        attributes = {
            "activation_alpha": activation_alpha, "activation_beta": activation_beta, "activations": activations,
            "clip": clip, "direction": direction, "layout": layout,
        }  # fmt: skip
        options = {"linear_before_reset": linear_before_reset, "input_forget": input_forget}
        cell = partial(step, bool(options[option])) if option else step
        return _run_layer(
            cell, gates, default_activations, state_count, x, w, r, b, lengths, (h, c), peepholes, attributes
        )

    return row(layer)


ROWS: dict[str, Row] = {
    "GRU": _layer_row(_gru, 3, ("Sigmoid", "Tanh"), 1, "linear_before_reset"),
    "LSTM": _layer_row(_lstm, 4, ("Sigmoid", "Tanh", "Tanh"), 2, "input_forget"),
    "RNN": _layer_row(_rnn, 1, ("Tanh",), 1, ""),
}
