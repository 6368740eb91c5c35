"""The texts of recurrent networks and cells, and a check that their weights have valid shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from conformance.fuzz.drawing import Drawing, require

STEPS = 6  # most time steps, as each is compiled separately
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


class WeightCheck(TorchFunctionMode):
    """Refuses networks with weights of wrong sizes, for which PyTorch reads out of bounds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        gates = next((n for kind, n in GATES.items() if func is getattr(torch, kind)), 0)
        require(not gates or _has_valid_shapes(gates, *args))
        return func(*args, **(kwargs or {}))


def _has_valid_shapes(
    gates: int, x: Tensor, state: Tensor | Sequence[Tensor], weights: Sequence[Tensor], biased: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> bool:  # fmt: skip
    """Return whether the shapes of state and weights fit the input."""
    states = (state,) if isinstance(state, Tensor) else tuple(state)
    if x.dim() != 3 or states[0].dim() != 3:
        return False
    width, directions, batch = states[0].shape[2], 1 + bidirectional, x.shape[0 if batch_first else 1]
    weight_shapes = []
    for layer in range(layers):
        inner = directions * width if layer else x.shape[2]
        weight_shapes += [
            (gates * width, inner),
            (gates * width, width),
            *[(gates * width,)] * (2 * biased),
        ] * directions
    expected = [*((layers * directions, batch, width) for _ in states), *weight_shapes]
    return expected == [tuple(y.shape) for y in (*states, *weights)]


def network(d: Drawing) -> str:
    """A network of one layer in one or both directions, or of two layers; both directions may share weights."""
    x = d.image(3)
    kind, batch_first = d.among(*GATES), d.chance(0.5)
    batch, steps = d.shape[:2] if batch_first else d.shape[1::-1]
    require(steps <= STEPS and d.first.eager.numel())
    width, biased = d.among(1, 2, 3, 5, 8), d.chance(0.5)
    layers, directions = d.among((1, 1), (1, 1), (1, 2), (2, 1))
    state = _state(d, kind, layers * directions, batch, width)
    weights = _weights(d, kind, d.size(2), width, biased)
    if directions == 2 and d.chance(0.5):
        weights += weights
    elif directions == 2:
        weights += _weights(d, kind, d.size(2), width, biased)
    elif layers == 2:
        weights += _weights(d, kind, width, width, biased)
    options = f"{biased}, {layers}, 0.0, {d.among(True, False)}, {directions == 2}, {batch_first}"
    return f"torch.{kind}({x}, {state}, [{', '.join(weights)}], {options})"


def cell(d: Drawing) -> str:
    """One step of a cell."""
    x = d.real(2, most=2)
    kind, width = d.among(*GATES), d.among(1, 3, 8, 17)
    weights = _weights(d, kind, d.size(1), width, d.chance(0.5))
    return f"torch.{kind}_cell({x}, {_state(d, kind, d.size(0), width)}, {', '.join(weights)})"


def _state(d: Drawing, kind: str, *shape: int) -> str:
    state = d.fresh(*shape)
    return f"({state}, {d.fresh(*shape)})" if kind == "lstm" else state


def _weights(d: Drawing, kind: str, size: int, width: int, biased: bool) -> list[str]:
    rows = GATES[kind] * width
    weights = [d.fresh(rows, size), d.fresh(rows, width)]
    return [*weights, d.fresh(rows), d.fresh(rows)] if biased else weights
