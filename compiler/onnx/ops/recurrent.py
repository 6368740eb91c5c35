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
    left, right = iter(alphas), iter(betas)

    def made(name: str) -> Activation:
        if name.lower() not in _ACTIVATIONS:
            raise Unsupported("onnx activation", (name,), f"known are {', '.join(_ACTIVATIONS)}")
        alpha, beta, f = _ACTIVATIONS[name.lower()]
        a, b = next(left, alpha), next(right, beta)
        return lambda x: f(x if clip is None else torch.clamp(x, -clip, clip), a, b)

    return [made(name) for name in names]


State = tuple[Tensor, ...]  # the hidden state and, for an LSTM, the cell state


def _rnn(x: Tensor, state: State, r: Tensor, rb: Tensor, peep: None, act: Sequence[Activation]) -> State:
    return (act[0](x + state[0] @ r.t() + rb),)


def _gru(
    before_reset: bool, x: Tensor, state: State, r: Tensor, rb: Tensor, peep: None, act: Sequence[Activation]
) -> State:
    (h,) = state
    (xz, xr, xh), (rz, rr, rh), (bz, br, bh) = x.chunk(3, -1), r.chunk(3), rb.chunk(3)
    z, reset = act[0](xz + h @ rz.t() + bz), act[0](xr + h @ rr.t() + br)
    inner = reset * (h @ rh.t() + bh) if before_reset else (reset * h) @ rh.t() + bh
    return ((1 - z) * act[1](xh + inner) + z * h,)


def _lstm(
    coupled: bool, x: Tensor, state: State, r: Tensor, rb: Tensor, peep: Tensor | None, act: Sequence[Activation]
) -> State:
    h, c = state
    i, o, f, g = (x + h @ r.t() + rb).chunk(4, -1)
    pi, po, pf = peep.chunk(3) if peep is not None else (torch.zeros((), dtype=x.dtype),) * 3
    i = act[0](i + pi * c)
    f = 1 - i if coupled else act[0](f + pf * c)
    c = f * c + i * act[1](g)
    return act[2](c) * act[0](o + po * c), c


def _run(
    step: Callable[..., State], gates: int, usual: Sequence[str], states: int, x: Tensor, w: Tensor, r: Tensor,
    b: Tensor | None, lengths: Tensor | None, begin: Sequence[Tensor | None], peep: Tensor | None,
    given: dict[str, Any],
) -> tuple[Tensor, ...]:  # fmt: skip
    """All directions: the hidden states of all steps, then the last states."""
    x = x.transpose(0, 1) if given["layout"] else x
    first = [s.transpose(0, 1) if given["layout"] and s is not None else s for s in begin]
    time, batch, _ = x.shape
    directions, hidden = r.shape[0], r.shape[2]
    names = given["activations"] or [*usual] * directions
    acts = _activations(names, given["activation_alpha"] or (), given["activation_beta"] or (), given["clip"])
    zero = torch.zeros(batch, hidden, dtype=x.dtype)
    rows, ends = [], []
    for d in range(directions):
        act = acts[d * len(usual) : (d + 1) * len(usual)]
        wb, rb = b[d].chunk(2) if b is not None else (torch.zeros(gates * hidden, dtype=x.dtype),) * 2
        inner = x @ w[d].t() + wb
        state: State = tuple(zero if s is None else s[d] for s in first[:states])
        backwards = d == 1 or given["direction"] == "reverse"
        made: dict[int, Tensor] = {}
        for t in reversed(range(time)) if backwards else range(time):
            new = step(inner[t], state, r[d], rb, None if peep is None else peep[d], act)
            made[t] = new[0]
            if lengths is not None:
                goes = (t < lengths).unsqueeze(-1)
                new = tuple(torch.where(goes, a, s) for a, s in zip(new, state, strict=True))
                made[t] = torch.where(goes, made[t], zero)
            state = new
        rows.append(torch.stack([made[t] for t in range(time)]))
        ends.append(state)
    whole = torch.stack(rows, 1)
    last = [torch.stack([e[n] for e in ends]) for n in range(states)]
    if given["layout"]:
        return whole.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in last)
    return whole, *last


def _row(step: Callable[..., Any], gates: int, usual: Sequence[str], states: int, option: str) -> Row:
    def layer(
        x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
        h: Tensor | None = None, c: Tensor | None = None, peep: Tensor | None = None, *, activation_alpha: Any = None,
        activation_beta: Any = None, activations: Any = None, clip: float | None = None, direction: str = "forward",
        hidden_size: int = 0, layout: int = 0, linear_before_reset: int = 0, input_forget: int = 0,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        given = {
            "activation_alpha": activation_alpha, "activation_beta": activation_beta, "activations": activations,
            "clip": clip, "direction": direction, "layout": layout,
        }  # fmt: skip
        options = {"linear_before_reset": linear_before_reset, "input_forget": input_forget}
        how = partial(step, bool(options[option])) if option else step
        return _run(how, gates, usual, states, x, w, r, b, lengths, (h, c), peep, given)

    return row(layer)


ROWS: dict[str, Row] = {
    "GRU": _row(_gru, 3, ("Sigmoid", "Tanh"), 1, "linear_before_reset"),
    "LSTM": _row(_lstm, 4, ("Sigmoid", "Tanh", "Tanh"), 2, "input_forget"),
    "RNN": _row(_rnn, 1, ("Tanh",), 1, ""),
}
