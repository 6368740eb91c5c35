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
    (count, _, *sizes), rank, taps = x.shape, x.dim() - 2, _TAPS[interpolation]
    found = [_axis(grid[..., rank - 1 - k], n, interpolation, padding, align_corners) for k, n in enumerate(sizes)]
    batch = torch.arange(count, device=x.device).view(-1, *[1] * rank)
    parts = []
    for corner in itertools.product(range(taps), repeat=rank):
        spots = [
            _spot(low, tap, n, taps, padding, align_corners)
            for (low, *_), tap, n in zip(found, corner, sizes, strict=True)
        ]
        inside, index = _within(spots, sizes)
        weights = [_weight(tap, t, taps)[0] for (_, t, _), tap in zip(found, corner, strict=True)]
        weight = torch.where(inside, math.prod(weights[1:], start=weights[0]), 0)
        parts.append(x.movedim(1, -1)[(batch, *index)] * weight.unsqueeze(-1))
    return sum(parts[1:], start=parts[0]).movedim(-1, 1).to(x.dtype)


def _axis(g: Tensor, n: int, interpolation: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The base tap, the point's distance from it, and the derivative of the point's position by its coordinate."""
    inner = _ZEROS if interpolation == _CUBIC else padding  # cubic interpolation pads each tap, not the point
    at, slope = _place(g, n, inner, align_corners)
    low = at.round() if interpolation == _NEAREST else at.floor()
    return low, at - low, slope


def _spot(low: Tensor, tap: Any, n: int, taps: int, padding: int, align_corners: bool) -> Tensor:
    """The position of a tap, numbered from the lowest, after padding."""
    spot: Tensor = low + (tap - 1 if taps == _TAPS[_CUBIC] else tap)
    if taps < _TAPS[_CUBIC] or padding == _ZEROS:
        return spot
    return (_reflected(spot, n, align_corners)[0] if padding == _REFLECTION else spot).clamp(0, n - 1)


def _place(g: Tensor, n: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """The position of a coordinate on an axis of `n` elements, and its derivative, which is 0 at a border."""
    at = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
    slope = torch.full_like(at, (n - 1) / 2 if align_corners else n / 2)
    if padding == _REFLECTION:
        at, back = _reflected(at, n, align_corners)
        slope = torch.where(back, -slope, slope)
    if padding == _ZEROS:
        return at, slope
    return at.clamp(0, n - 1), torch.where((at <= 0) | (at >= n - 1), 0, slope)


def _reflected(at: Tensor, n: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """Positions reflected at the ends of an axis of `n` elements, and which of them then move backwards."""
    low, span = (0.0, n - 1) if align_corners else (-0.5, n)
    over = at - low
    off = torch.remainder(over.abs(), 2 * span) if span else torch.zeros_like(at)
    return torch.where(off > span, 2 * span - off, off) + low, (over < 0) != (off >= span)


def _within(spots: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """The mask of positions inside, and all positions as indices, with 0 for those outside."""
    inside = functools.reduce(torch.logical_and, ((i >= 0) & (i < n) for i, n in zip(spots, sizes, strict=True)))
    return inside, [torch.where(inside, i, 0).to(torch.int64) for i in spots]


def _sampled(x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Tensor:
    """Samples, with eager's results also for points that are infinite or NaN.

    A clamp maps NaN to position 0, but to the last one in volumes on CPUs; reflection maps all such points like NaN.
    With zero padding the sample is 0, but NaN for linear interpolation of images on CPUs. With cubic interpolation it
    is NaN.
    """
    sizes, on_cpu = x.shape[2:], x.device.type == "cpu"
    grid = grid.to(torch.promote_types(grid.dtype, torch.float32))
    places = [(g + 1) * (n / 2) for g, n in zip(grid.unbind(-1), reversed(sizes), strict=True)]
    lost = torch.stack(places, -1).isfinite().logical_not()
    if interpolation == _CUBIC:
        made = _sample(x, grid, interpolation, padding, align_corners)
        return torch.where(lost.any(-1).unsqueeze(1), math.nan, made)
    if padding:
        edge = 1 if on_cpu and len(sizes) == 3 else -1
        lost = lost if padding == _REFLECTION else grid.isnan()
        return _sample(x, torch.where(lost, edge, grid), interpolation, padding, align_corners)
    made = _sample(x, grid, interpolation, padding, align_corners)
    beyond = math.nan if on_cpu and len(sizes) == 2 and interpolation == _LINEAR else 0
    return torch.where(lost.any(-1).unsqueeze(1), beyond, made)


def _weight(tap: int, t: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    """The weight of a tap, numbered from the lowest, for a point `t` beyond the base tap; and its derivative by t."""
    if taps == _TAPS[_NEAREST]:
        return torch.ones_like(t), torch.zeros_like(t)
    if taps == _TAPS[_LINEAR]:
        return (t, torch.ones_like(t)) if tap else (1 - t, torch.full_like(t, -1))
    d, away = (1 - tap + t, 1) if tap < 2 else (tap - 1 - t, -1)
    if tap in (1, 2):
        return ((_BEND + 2) * d - (_BEND + 3)) * d * d + 1, (3 * (_BEND + 2) * d - 2 * (_BEND + 3)) * d * away
    return (
        ((_BEND * d - 5 * _BEND) * d + 8 * _BEND) * d - 4 * _BEND,
        ((3 * _BEND * d - 10 * _BEND) * d + 8 * _BEND) * away,
    )


def _weights(tap: Tensor, t: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    """Weights and derivatives for a tensor of tap numbers."""
    every = [_weight(k, t, taps) for k in range(taps)]
    weight, slope = every[0]
    for k, (w, s) in enumerate(every[1:], start=1):
        weight, slope = torch.where(tap == k, w, weight), torch.where(tap == k, s, slope)
    return weight, slope


def _backward(
    grad: Tensor, x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the elements and of the grid. A leading axis enumerates all taps."""
    (count, channels, *sizes), rank, kind = x.shape, x.dim() - 2, torch.promote_types(x.dtype, torch.float32)
    taps = _TAPS[interpolation]
    number = torch.arange(taps**rank, device=x.device).view(-1, *[1] * (rank + 1))
    spots, weights, slopes = [], [], []
    for k, n in enumerate(sizes):
        low, t, slope = _axis(grid[..., rank - 1 - k].to(kind), n, interpolation, padding, align_corners)
        tap = number // taps ** (rank - 1 - k) % taps
        weight, moves = _weights(tap, t, taps)
        spots.append(_spot(low, tap, n, taps, padding, align_corners))
        weights.append(weight)
        slopes.append(moves * slope)
    inside, index = _within(spots, sizes)
    places = (torch.arange(count, device=x.device).view(1, -1, *[1] * rank), *index)
    coming = grad.movedim(1, -1).to(kind)
    of_x: Tensor | None = None
    if output_mask[0]:
        share = torch.where(inside, math.prod(weights[1:], start=weights[0]), 0).unsqueeze(-1) * coming
        blank = torch.zeros(count, *sizes, channels, dtype=kind, device=x.device)
        of_x = blank.index_put(places, share, accumulate=True).movedim(-1, 1).to(x.dtype)
    if not output_mask[1]:
        return of_x, None
    felt = torch.where(inside, (x.movedim(1, -1)[places].to(kind) * coming).sum(-1), 0)
    moved = [
        felt * math.prod((weights[j] for j in range(rank) if j != k), start=slopes[k]) for k in reversed(range(rank))
    ]
    if rank == 3 or x.device.type != "cpu":  # only for images on CPUs, NaN weights count outside
        moved = [torch.where(inside, m, 0) for m in moved]
    return of_x, torch.stack([m.sum(0) for m in moved], -1).to(grid.dtype)


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "grid_sampler_2d.default": _sampled, "grid_sampler_3d.default": _sampled,
    "grid_sampler_2d_backward.default": _backward, "grid_sampler_3d_backward.default": _backward,
}  # fmt: skip
