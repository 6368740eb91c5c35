"""Pairwise distances between rows, computed from differences to avoid cancellation, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MOST_ROWS = 64  # the most rows whose pairs are computed as a matrix


def _distances(a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Distances of each row of `a` from each row of `b`, from their differences."""
    differences = a.unsqueeze(-2) - b.unsqueeze(-3)
    norms: Tensor = torch.linalg.vector_norm(differences, p, dim=-1)
    return norms


def _pair_distances(x: Tensor, p: float = 2.0) -> Any:
    """Distances of each row from each later one."""
    n = x.shape[0]
    if type(n) is not int or n > _MOST_ROWS:
        return NotImplemented
    if n < 2:
        return x.new_zeros(0)
    matrix = _distances(x, x, p)
    return torch.cat([matrix[k, k + 1 :] for k in range(n - 1)])


def _slopes(difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """The derivative of a distance by one component of the difference; 0 for equal rows.

    For p = inf, it is the sign of each component that is as large as the largest.
    """
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if p == math.inf:
        return torch.where(difference.abs() == distance, difference.sign(), 0)
    ratio = difference.abs() / distance
    slope = difference.sign() * (ratio if p == 2 else ratio.pow(p - 1))
    return torch.where((distance == 0) | (difference == 0), 0, slope)


def _backward(grad: Tensor, a: Tensor, b: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of `a`, whose batch dimensions may broadcast to those of the distances."""
    slopes = _slopes(a.unsqueeze(-2) - b.unsqueeze(-3), distances.unsqueeze(-1), p)
    return (grad.unsqueeze(-1) * slopes).sum(-2)


def _pairs_backward(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Any:
    """Expand the distances of pairs and their gradients to symmetric matrices with zeros on the diagonal."""
    n = x.shape[0]
    if type(n) is not int or n > _MOST_ROWS:
        return NotImplemented
    if n < 2:
        return torch.zeros_like(x)
    row = torch.arange(n, device=x.device)
    low, high = torch.minimum(row, row.unsqueeze(1)), torch.maximum(row, row.unsqueeze(1))
    pair_index = (low * (2 * n - 1 - low) // 2 + high - low - 1).clamp(min=0)
    is_off_diagonal = low != high
    distance_matrix, grad_matrix = (
        torch.where(is_off_diagonal, values.take(pair_index), 0) for values in (distances, grad)
    )
    return _backward(grad_matrix, x, x, p, distance_matrix)


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "_cdist_forward.default": _distances, "_cdist_backward.default": _backward,
    "_pdist_forward.default": _pair_distances, "_pdist_backward.default": _pairs_backward,
}  # fmt: skip
