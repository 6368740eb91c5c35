"""Sampling of images and volumes at the points of a grid, and its gradients.

A point lies a fraction of the way between neighbours along each axis. Its sample is a sum over taps: neighbours with
weights that depend on the fraction. An axis has one tap for nearest, two for linear and four for cubic interpolation.
Outside of the image are zeros, the border or a reflection.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LINEAR, _NEAREST, _CUBIC = range(3)
_TAPS = {_NEAREST: 1, _LINEAR: 2, _CUBIC: 4}  # taps along an axis
_ZEROS, _BORDER, _REFLECTION = range(3)
_BEND = -0.75  # parameter of the cubic kernel, as in torch


def _sample(x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Tensor:
    """Samples at points with coordinates from -1 to 1."""
    (count, _, *sizes), rank, tap_count = x.shape, x.dim() - 2, _TAPS[interpolation]
    axes = [_base_tap(grid[..., rank - 1 - k], n, interpolation, padding, align_corners) for k, n in enumerate(sizes)]
    batch = torch.arange(count, device=x.device).view(-1, *[1] * rank)
    parts = []
    for corner in itertools.product(range(tap_count), repeat=rank):
        positions = [
            _tap_position(low, tap, n, tap_count, padding, align_corners)
            for (low, *_), tap, n in zip(axes, corner, sizes, strict=True)
        ]
        inside, index = _mask_and_indices(positions, sizes)
        weights = [_tap_weight(tap, t, tap_count)[0] for (_, t, _), tap in zip(axes, corner, strict=True)]
        weight = torch.where(inside, math.prod(weights[1:], start=weights[0]), 0)
        parts.append(x.movedim(1, -1)[(batch, *index)] * weight.unsqueeze(-1))
    return sum(parts[1:], start=parts[0]).movedim(-1, 1).to(x.dtype)


def _base_tap(
    g: Tensor, n: int, interpolation: int, padding: int, align_corners: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The base tap, the point's distance from it, and the derivative of the point's position by its coordinate."""
    point_padding = _ZEROS if interpolation == _CUBIC else padding  # cubic interpolation pads each tap, not the point
    position, slope = _pixel_position(g, n, point_padding, align_corners)
    base = position.round() if interpolation == _NEAREST else position.floor()
    return base, position - base, slope


def _tap_position(base: Tensor, tap: Any, n: int, tap_count: int, padding: int, align_corners: bool) -> Tensor:
    """The position of a tap, numbered from the lowest, after padding."""
    position: Tensor = base + (tap - 1 if tap_count == _TAPS[_CUBIC] else tap)
    if tap_count < _TAPS[_CUBIC] or padding == _ZEROS:
        return position
    return (_reflect(position, n, align_corners)[0] if padding == _REFLECTION else position).clamp(0, n - 1)


def _pixel_position(g: Tensor, n: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """The position of a coordinate on an axis of `n` elements, and its derivative, which is 0 at a border."""
    position = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
    slope = torch.full_like(position, (n - 1) / 2 if align_corners else n / 2)
    if padding == _REFLECTION:
        position, is_backwards = _reflect(position, n, align_corners)
        slope = torch.where(is_backwards, -slope, slope)
    if padding == _ZEROS:
        return position, slope
    return position.clamp(0, n - 1), torch.where((position <= 0) | (position >= n - 1), 0, slope)


def _reflect(position: Tensor, n: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """Positions reflected at the ends of an axis of `n` elements, and which of them then move backwards."""
    low, span = (0.0, n - 1) if align_corners else (-0.5, n)
    distance = position - low
    folded = torch.remainder(distance.abs(), 2 * span) if span else torch.zeros_like(position)
    return torch.where(folded > span, 2 * span - folded, folded) + low, (distance < 0) != (folded >= span)


def _mask_and_indices(positions: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """The mask of positions inside, and all positions as indices, with 0 for those outside."""
    inside = functools.reduce(torch.logical_and, ((i >= 0) & (i < n) for i, n in zip(positions, sizes, strict=True)))
    return inside, [torch.where(inside, i, 0).to(torch.int64) for i in positions]


def _grid_sample(x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Tensor:
    """Samples, with eager's results also for points that are infinite or NaN.

    A clamp maps NaN to position 0, but to the last one in volumes on CPUs; reflection maps all such points like NaN.
    With zero padding the sample is 0, but NaN for linear interpolation of images on CPUs. With cubic interpolation it
    is NaN.
    """
    sizes, on_cpu = x.shape[2:], x.device.type == "cpu"
    grid = grid.to(torch.promote_types(grid.dtype, torch.float32))
    positions = [(g + 1) * (n / 2) for g, n in zip(grid.unbind(-1), reversed(sizes), strict=True)]
    is_not_finite = torch.stack(positions, -1).isfinite().logical_not()
    if interpolation == _CUBIC:
        samples = _sample(x, grid, interpolation, padding, align_corners)
        return torch.where(is_not_finite.any(-1).unsqueeze(1), math.nan, samples)
    if padding:
        edge = 1 if on_cpu and len(sizes) == 3 else -1
        is_not_finite = is_not_finite if padding == _REFLECTION else grid.isnan()
        return _sample(x, torch.where(is_not_finite, edge, grid), interpolation, padding, align_corners)
    samples = _sample(x, grid, interpolation, padding, align_corners)
    outside = math.nan if on_cpu and len(sizes) == 2 and interpolation == _LINEAR else 0
    return torch.where(is_not_finite.any(-1).unsqueeze(1), outside, samples)


def _tap_weight(tap: int, t: Tensor, tap_count: int) -> tuple[Tensor, Tensor]:
    """The weight of a tap, numbered from the lowest, for a point `t` beyond the base tap; and its derivative by t."""
    if tap_count == _TAPS[_NEAREST]:
        return torch.ones_like(t), torch.zeros_like(t)
    if tap_count == _TAPS[_LINEAR]:
        return (t, torch.ones_like(t)) if tap else (1 - t, torch.full_like(t, -1))
    distance, direction = (1 - tap + t, 1) if tap < 2 else (tap - 1 - t, -1)
    if tap in (1, 2):
        return ((_BEND + 2) * distance - (_BEND + 3)) * distance * distance + 1, (
            3 * (_BEND + 2) * distance - 2 * (_BEND + 3)
        ) * distance * direction
    return (
        ((_BEND * distance - 5 * _BEND) * distance + 8 * _BEND) * distance - 4 * _BEND,
        ((3 * _BEND * distance - 10 * _BEND) * distance + 8 * _BEND) * direction,
    )


def _tap_weights(tap: Tensor, t: Tensor, tap_count: int) -> tuple[Tensor, Tensor]:
    """Weights and derivatives for a tensor of tap numbers."""
    each_tap = [_tap_weight(k, t, tap_count) for k in range(tap_count)]
    weight, slope = each_tap[0]
    for k, (w, s) in enumerate(each_tap[1:], start=1):
        weight, slope = torch.where(tap == k, w, weight), torch.where(tap == k, s, slope)
    return weight, slope


def _backward(
    grad: Tensor, x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the elements and of the grid. A leading axis enumerates all taps."""
    (count, channels, *sizes), rank, dtype = x.shape, x.dim() - 2, torch.promote_types(x.dtype, torch.float32)
    tap_count = _TAPS[interpolation]
    tap_number = torch.arange(tap_count**rank, device=x.device).view(-1, *[1] * (rank + 1))
    positions, weights, slopes = [], [], []
    for k, n in enumerate(sizes):
        base, t, slope = _base_tap(grid[..., rank - 1 - k].to(dtype), n, interpolation, padding, align_corners)
        tap = tap_number // tap_count ** (rank - 1 - k) % tap_count
        weight, weight_slope = _tap_weights(tap, t, tap_count)
        positions.append(_tap_position(base, tap, n, tap_count, padding, align_corners))
        weights.append(weight)
        slopes.append(weight_slope * slope)
    inside, index = _mask_and_indices(positions, sizes)
    element_index = (torch.arange(count, device=x.device).view(1, -1, *[1] * rank), *index)
    gradients = grad.movedim(1, -1).to(dtype)
    x_gradient: Tensor | None = None
    if output_mask[0]:
        contributions = torch.where(inside, math.prod(weights[1:], start=weights[0]), 0).unsqueeze(-1) * gradients
        zeros = torch.zeros(count, *sizes, channels, dtype=dtype, device=x.device)
        x_gradient = zeros.index_put(element_index, contributions, accumulate=True).movedim(-1, 1).to(x.dtype)
    if not output_mask[1]:
        return x_gradient, None
    point_gradient = torch.where(inside, (x.movedim(1, -1)[element_index].to(dtype) * gradients).sum(-1), 0)
    grid_gradients = [
        point_gradient * math.prod((weights[j] for j in range(rank) if j != k), start=slopes[k])
        for k in reversed(range(rank))
    ]
    if rank == 3 or x.device.type != "cpu":  # only for images on CPUs, NaN weights count outside
        grid_gradients = [torch.where(inside, m, 0) for m in grid_gradients]
    return x_gradient, torch.stack([m.sum(0) for m in grid_gradients], -1).to(grid.dtype)


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "grid_sampler_2d.default": _grid_sample, "grid_sampler_3d.default": _grid_sample,
    "grid_sampler_2d_backward.default": _backward, "grid_sampler_3d_backward.default": _backward,
}  # fmt: skip
