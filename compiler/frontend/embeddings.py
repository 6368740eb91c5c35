"""Embedding bags: the sum, mean or maximum of the rows of a bag, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SUM, _MEAN, _MAX = range(3)


def _renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rescale the rows named in `indices` whose norm exceeds `max_norm`."""
    norms = torch.linalg.vector_norm(weight, norm_type, dim=1)
    is_named = torch.zeros_like(norms, dtype=torch.bool).index_fill(0, indices.flatten(), True)
    scale = torch.where(is_named & (norms > max_norm), max_norm / (norms + 1e-7), 1)
    return weight * scale.unsqueeze(1).to(weight.dtype)


def _bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = _SUM,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The bags, each from its offset to the next; the bag of each index, the sizes of bags, the indices of maxima.

    All but the bags are for the backward pass below, in its own format, as eager's formats differ between devices.
    """
    if per_sample_weights is not None and per_sample_weights.dtype != weight.dtype:
        dtypes = f"{weight.dtype} and {per_sample_weights.dtype}"
        raise RuntimeError(f"embedding_bag: weight and per_sample_weights are to be of one type, not {dtypes}")
    bag_count, (count,) = offsets.shape[0] - int(include_last_offset), indices.shape
    is_counted = indices != padding_idx
    in_range = ((indices >= 0) & (indices < weight.shape[0])).all()
    for condition, message in (
        (in_range, f"embedding_bag: an index is out of range of the {weight.shape[0]} rows"),
        ((offsets[:1] == 0).all(), "embedding_bag: offsets[0] has to be 0"),
        ((offsets[-1:] <= count).all(), "embedding_bag: offsets[-1] can not be greater than input's length"),
    ):
        torch.ops.aten._assert_async.msg(condition, message)
    positions = torch.arange(count, device=offsets.device)
    bag = (offsets[:bag_count] <= positions.unsqueeze(-1)).sum(-1) - 1
    rows = weight.index_select(0, indices.clamp(0, max(weight.shape[0] - 1, 0))).to(_compute_dtype(weight))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    size = torch.zeros_like(offsets[:bag_count]).index_add(0, bag, is_counted.to(offsets.dtype))
    zeros = rows.new_zeros(bag_count, weight.shape[1])
    if mode == _MAX:
        # Padding is in an extra bag, which is cut off.
        bag_index = torch.where(is_counted, bag, bag_count).unsqueeze(1).expand(rows.shape)
        padded = F.pad(zeros, (0, 0, 0, 1))
        maxima = padded.scatter_reduce(0, bag_index, rows, "amax", include_self=False)
        is_largest = (rows == maxima.gather(0, bag_index)) | rows.isnan()
        position = torch.where(is_largest, positions.unsqueeze(1), count)
        first_positions = torch.full_like(padded, count, dtype=torch.int64).scatter_reduce(
            0, bag_index, position, "amin"
        )[:bag_count]
        largest = F.pad(indices, (0, 1)).take(first_positions)
        return maxima[:bag_count].to(weight.dtype), bag, size, largest
    sums = zeros.index_add(0, bag, torch.where(is_counted.unsqueeze(1), rows, 0))
    if mode == _MEAN:
        sums = sums / size.clamp(min=1).unsqueeze(1)
    return sums.to(weight.dtype), bag, size, size


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _dense_backward(
    grad: Tensor, indices: Tensor, bag: Tensor, size: Tensor, largest: Tensor, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Add to each row the gradients of its bags; for maxima, each element's gradient goes to the row that it came from.

    `scale_grad_by_freq` is not implemented: torch's frequencies depend on the device and, on CPUs, on the order of
    indices.
    """
    if scale_grad_by_freq:
        return NotImplemented
    gradients = grad.to(_compute_dtype(grad))
    zeros = gradients.new_zeros(num_weights, grad.shape[1])
    if mode == _MAX:
        return zeros.scatter_add(0, largest.long(), torch.where((size > 0).unsqueeze(1), gradients, 0)).to(grad.dtype)
    if mode == _MEAN:
        gradients = gradients / size.clamp(min=1).unsqueeze(1)
    row_gradients = torch.where((indices != padding_idx).unsqueeze(1), gradients.index_select(0, bag), 0)
    if per_sample_weights is not None:
        row_gradients = row_gradients * per_sample_weights.unsqueeze(1)
    return zeros.index_add(0, indices, row_gradients).to(grad.dtype)


def _backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, size: Tensor, largest: Tensor, num_weights: int,
    scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Any:  # fmt: skip
    if sparse:
        return NotImplemented
    by_frequency = scale_grad_by_freq
    return _dense_backward(
        grad, indices, bag, size, largest, num_weights, by_frequency, mode, per_sample_weights, padding_idx
    )


def _weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:  # fmt: skip
    """The gradient of each row's weight: the dot product of the row and its bag's gradient."""
    dtype = _compute_dtype(grad)
    products = (grad.index_select(0, bag).to(dtype) * weight.index_select(0, indices).to(dtype)).sum(1)
    return torch.where(indices != padding_idx, products, 0).to(grad.dtype)


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "embedding_renorm.default": _renorm, "_embedding_bag_forward_only.default": _bag, "_embedding_bag.default": _bag,
    "_embedding_bag_backward.default": _backward, "_embedding_bag_dense_backward.default": _dense_backward,
    "_embedding_bag_per_sample_weights_backward.default": _weights_backward,
}  # fmt: skip
