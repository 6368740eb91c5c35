"""Loss curves of training from the same weights on the same data: compiled, in eager and in f64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conformance.shapes.inputs import widen
from conformance.training.models import MODELS, Batch, Kind, Size

OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"fallback": False}  # no op of a step may run in eager


@dataclass(frozen=True)
class Curves:
    """The losses of all steps, converted to f64."""

    ours: Tensor
    eager: Tensor
    exact: Tensor

    @property
    def our_error(self) -> float:
        """The largest error of ours against f64."""
        return float((self.ours - self.exact).abs().max())

    @property
    def eager_error(self) -> float:
        """The largest error of eager against f64, at least the rounding error of a loss."""
        return max(float((self.eager - self.exact).abs().max()), 2.0**-22 * float(self.exact.abs().max()))


def train(name: str, size: Size, steps: int, seed: int, device: str = "cpu") -> Curves:
    """Train with AdamW for `steps` steps on one batch."""
    torch.manual_seed(seed)
    torch.compiler.reset()
    kind = MODELS[name]
    model, (x, targets) = kind.make(size).to(device), kind.batch(size)
    x, targets = x.to(device), targets.to(device)

    return Curves(
        _losses(copy.deepcopy(model), (x, targets), kind, steps, size.rate, compiled=True),
        _losses(copy.deepcopy(model), (x, targets), kind, steps, size.rate),
        _losses(copy.deepcopy(model).double(), (widen(x), widen(targets)), kind, steps, size.rate),
    )


def _losses(model: nn.Module, batch: Batch, kind: Kind, steps: int, rate: float, compiled: bool = False) -> Tensor:
    optimizer = torch.optim.AdamW(model.parameters(), rate)

    def forward(x: Tensor, targets: Tensor) -> Tensor:
        return kind.loss(model(x), targets)

    run = torch.compile(forward, backend="mlcomp", fullgraph=True, options=OPTIONS) if compiled else forward
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run(*batch)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach().double())
    return torch.stack(losses).cpu()
