"""Margin losses, for which torch's decompositions differ from its kernels.

The kernels count a margin that is met exactly in the gradient, propagate NaN, and treat each label from the first -1 on
as class 0. Torch differentiates through its Python kernels, whatever decompositions it is given; `with_definitions`
replaces those.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch._C import DispatchKey

from compiler.frontend import python_kernels


def _shortfall(margins: torch.Tensor) -> torch.Tensor:
    """The amount by which scores miss their margins; 0 for a margin that is met, or NaN."""
    return torch.where(margins > 0, margins, 0)


def _multi_margin_loss(
    x: torch.Tensor, target: torch.Tensor, p: float = 1, margin: float = 1, weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:  # fmt: skip
    rows, target = x if x.dim() > 1 else x.reshape(1, -1), target.reshape(-1, 1)
    losses = _shortfall(margin - rows.gather(1, target) + rows)
    losses = losses if p == 1 else losses * losses
    if weight is not None:
        losses = losses * weight.reshape(-1)[target]
    is_other = torch.arange(rows.shape[1], device=x.device) != target
    losses = torch.where(is_other, losses, 0).sum(1) / rows.shape[1]
    return _reduce(losses.reshape(x.shape[:-1]), reduction)


def _multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss over the targets before the first -1, and the mask of target classes."""
    if not x.dim():
        loss, is_target = _multilabel_margin_loss(x.reshape(1), target.reshape(1), reduction)
        return loss, is_target.reshape(())
    classes = x.shape[-1]
    positions = torch.arange(classes, device=x.device)
    is_listed = positions < torch.where(target == -1, positions, classes).amin(-1, keepdim=True)
    is_target = (positions == torch.where(is_listed, target, -1).unsqueeze(-1)).any(-2)
    target_scores = x.gather(-1, torch.where(is_listed, target, 0))
    margins = _shortfall(1 - target_scores.unsqueeze(-1) + x.unsqueeze(-2)) / classes
    has_margin = is_listed.unsqueeze(-1) & is_target.logical_not().unsqueeze(-2)
    return _reduce(torch.where(has_margin, margins, 0).sum((-2, -1)), reduction), is_target.to(x.dtype)


def _reduce(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    return (lambda: losses, losses.mean, losses.sum)[reduction]()


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "multi_margin_loss.default": _multi_margin_loss,
    "multilabel_margin_loss_forward.default": _multilabel_margin_loss,
}


def with_definitions() -> contextlib.AbstractContextManager[None]:
    """While entered, torch derives gradients from the definitions here."""
    by_op: dict[Any, Callable[..., Any]] = {
        attrgetter(name)(torch.ops.aten): definition for name, definition in DEFINITIONS.items()
    }
    key = DispatchKey.Autograd
    return python_kernels.replaced_kernels(
        {op: {key: definition} for op, definition in by_op.items() if key in op.py_kernels}
    )
