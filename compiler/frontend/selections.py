"""Ops that select elements by rank or predicate, as sorts, cumulative sums and gathers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LONGEST_COMPARED = 1024  # the longest row whose elements are compared pairwise


def _scalar_result(x: Tensor) -> tuple[Tensor, Tensor]:
    """The result for a scalar: a copy and index 0."""
    return x.clone(), torch.zeros_like(x, dtype=torch.int64)


def _drop_dim(parts: list[Tensor], dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Values and indices, with the reduced dimension removed unless `keepdim`."""
    value, position = (part if keepdim else part.squeeze(dim) for part in parts)
    return value, position


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.dim():
        return _scalar_result(x)
    parts = [part.narrow(dim, k - 1, 1).clone(memory_format=torch.contiguous_format) for part in x.sort(dim)]
    return _drop_dim(parts, dim, keepdim)


def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The lower median; the first NaN if there is one, since sorting puts NaN last."""
    if not x.dim():
        return _scalar_result(x)
    n = x.shape[dim]
    if type(n) is int and not n:
        return NotImplemented
    count = x.isnan().logical_not().sum(dim, keepdim=True)
    position = torch.where(count < n, count, (n - 1) // 2)
    parts = [part.gather(dim, position) for part in x.sort(dim)]
    return _drop_dim(parts, dim, keepdim)


def _median(x: Tensor) -> Any:
    result = _median_dim(x.flatten(), 0)
    return result if result is NotImplemented else result[0]


def _nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The lower median of the elements that are not NaN, which sorting puts last; NaN if there are no others."""
    if not x.dim():
        return _scalar_result(x)
    if not x.shape[dim] or not x.numel():
        return NotImplemented
    count = x.isnan().logical_not().sum(dim, keepdim=True)
    position = ((count - 1) // 2).clamp(min=0)
    parts = [part.gather(dim, position) for part in x.sort(dim)]
    return _drop_dim(parts, dim, keepdim)


def _nanmedian(x: Tensor) -> Any:
    return _nanmedian_dim(x.flatten(), 0)[0] if x.numel() else NotImplemented


def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent elements, and its last index; NaN equals nothing."""
    if not x.dim():
        return _scalar_result(x)
    n = x.shape[dim]
    if not x.numel() or type(n) is not int or n > _LONGEST_COMPARED:
        return NotImplemented
    rows = x.movedim(dim, -1)
    counts = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).sum(-1)
    is_most_frequent = counts == counts.amax(-1, keepdim=True)
    largest = math.inf if x.is_floating_point() else True if x.dtype is torch.bool else torch.iinfo(x.dtype).max
    value = torch.where(is_most_frequent, rows, largest).to(x.dtype).amin(-1, keepdim=True)
    positions = torch.where(rows == value, torch.arange(n, device=x.device), 0)
    parts = [part.movedim(-1, dim) for part in (value, positions.amax(-1, keepdim=True))]
    return _drop_dim(parts, dim, keepdim)


def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The indices of the first `size` non-zero elements; all others are scattered to an extra row that is dropped."""
    if not x.dim() or not x.numel() or not size:
        return x.new_full((size, x.dim()), fill_value, dtype=torch.int64)
    is_nonzero = (x != 0).flatten()
    rank = is_nonzero.cumsum(0) - 1
    row = torch.where(is_nonzero & (rank < size), rank, size)
    positions = torch.arange(x.numel(), device=x.device)
    empty_rows = torch.full((size + 1,), -1, dtype=torch.int64, device=x.device)
    flat_indices = empty_rows.scatter(0, row, positions)[:size]
    columns = [
        torch.where(flat_indices < 0, fill_value, flat_indices // math.prod(x.shape[d + 1 :]) % x.shape[d])
        for d in range(x.dim())
    ]
    return torch.stack(columns, -1)


def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradient of the source, whose k-th element went to the k-th true element of the mask; 0 for others."""
    gradients, is_set = (x.flatten() for x in torch.broadcast_tensors(grad, mask))  # type: ignore[no-untyped-call]
    if not gradients.numel():
        return grad.new_zeros(sizes)
    positions = _nonzero_static(is_set, size=math.prod(sizes)).squeeze(1)
    return torch.where(positions < 0, 0, gradients[positions.clamp(min=0)]).reshape(sizes)


def _logcumsumexp(x: Tensor, dim: int) -> Any:
    """A parallel prefix by doubling: each element is combined with the one 2^k before it.

    No element is lost next to a larger one that comes later.
    """
    if not x.dim() or not x.numel():
        return x.clone()
    n = x.shape[dim]
    if type(n) is not int or x.is_complex():
        return NotImplemented
    sums = x.movedim(dim, -1).to(torch.promote_types(x.dtype, torch.float32))
    for step in (1 << k for k in range((n - 1).bit_length())):
        sums = torch.logaddexp(sums, F.pad(sums[..., :-step], (step, 0), value=-math.inf))
    return sums.to(x.dtype, copy=n == 1).movedim(-1, dim)


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "kthvalue.default": _kthvalue, "median.default": _median, "median.dim": _median_dim,
    "nanmedian.default": _nanmedian, "nanmedian.dim": _nanmedian_dim, "mode.default": _mode,
    "nonzero_static.default": _nonzero_static, "logcumsumexp.default": _logcumsumexp,
    "masked_scatter_backward.default": _masked_scatter_backward,
}  # fmt: skip
