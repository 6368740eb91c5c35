"""Ops on the representation of floating-point numbers, and segment reductions.

The former compute in f64, which is exact for types up to f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _exponent(x: Tensor) -> Tensor:
    """The integer e with 2^(e-1) <= |x| < 2^e, for finite non-zero numbers in f64."""
    magnitude = x.abs()
    exponent = magnitude.log2().floor() + 1
    exponent = torch.where(magnitude >= torch.exp2(exponent), exponent + 1, exponent)
    return torch.where(magnitude < torch.exp2(exponent - 1), exponent - 1, exponent)


def _frexp(x: Tensor) -> Any:
    if x.dtype is torch.float64:
        return NotImplemented
    is_regular = x.isfinite() & (x != 0)
    wide = torch.where(is_regular, x, 1).to(torch.float64)
    exponent = _exponent(wide)
    mantissa = (wide * torch.exp2(-exponent)).to(x.dtype)
    is_power = mantissa.abs() == 1  # a power of two whose logarithm was rounded down
    mantissa, exponent = torch.where(is_power, mantissa / 2, mantissa), torch.where(is_power, exponent + 1, exponent)
    return torch.where(is_regular, mantissa, x), torch.where(is_regular, exponent, 0).to(torch.int32)


def _nextafter(x: Tensor, y: Tensor) -> Any:
    """Round x plus or minus 0.625 * eps * |x| to nearest, a step of 0.625 to 1.25 spacings.

    From a power of two towards zero, where spacings are half as long, the step is 1.25 of those.
    """
    if x.dtype is torch.float64 or x.dtype != y.dtype:
        return NotImplemented
    x, info = x.to(torch.float32).to(x.dtype), torch.finfo(x.dtype)  # the neighbour is that of the stored value
    x, y = torch.broadcast_tensors(x, y)  # type: ignore[no-untyped-call]
    wide, smallest = x.to(torch.float64), info.smallest_normal * info.eps
    step = (wide.abs() * (0.625 * info.eps)).clamp(min=0.75 * smallest)
    neighbour = (wide + torch.where(y > x, step, -step)).to(x.dtype)
    neighbour = torch.where(x.isinf(), torch.copysign(torch.full_like(x, info.max), x), neighbour)
    return torch.where(x == y, y, torch.where(x.isnan() | y.isnan(), math.nan, neighbour))


def _ldexp(x: Tensor, n: Tensor) -> Tensor:
    """x * 2^n. 2^n may overflow for an integer n although the product does not, so n is applied in steps."""
    if not x.is_floating_point() or n.is_floating_point():
        two = x.new_full((), 2.0, dtype=x.dtype if x.is_floating_point() else torch.float32)
        return x * torch.pow(two, n)
    wide, steps = x.to(torch.float64), ((300,) if x.dtype is not torch.float64 else (1000, 1000, 100))
    for step in steps:
        shift = n.to(torch.int64).clamp(-step, step)
        wide, n = wide * torch.exp2(shift.to(torch.float64)), n - shift
    return wide.to(x.dtype)


_IDENTITY = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


def _segment_reduce(
    x: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Any:  # fmt: skip
    """Reduce segments, given by `lengths` or `offsets`. Each segment reads all elements and masks the others."""
    del unsafe
    if indices is not None or not x.numel() or (offsets is None and lengths is None):
        return NotImplemented
    in_segment = _segments(x, lengths, offsets, axis)
    start_value = _IDENTITY[reduce] if initial is None else initial
    masked = torch.where(in_segment, x.unsqueeze(axis), _IDENTITY[reduce])
    element_axis = axis + 1
    if reduce in ("max", "min"):
        return (
            masked.amax(element_axis).clamp(min=start_value)
            if reduce == "max"
            else masked.amin(element_axis).clamp(max=start_value)
        )
    if reduce == "prod":
        return masked.prod(element_axis) * start_value
    totals = masked.sum(element_axis) + start_value
    if reduce == "sum":
        return totals
    count = in_segment.sum(element_axis)
    empty = math.nan if initial is None else start_value
    return torch.where(count == 0, empty, totals / count.clamp(min=1)).to(x.dtype)


def _segments(x: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> Tensor:
    """The mask of the elements in each segment; the axis of segments is followed by the axis of elements."""
    if offsets is not None:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    else:
        assert lengths is not None, "segments have lengths or offsets"
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    positions = torch.arange(x.shape[axis], device=x.device)
    in_segment = (positions >= starts.unsqueeze(-1)) & (positions < ends.unsqueeze(-1))
    return in_segment.reshape(*in_segment.shape, *[1] * (x.dim() - axis - 1))


def _segment_reduce_backward(
    grad: Tensor, reduced: Tensor, x: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: float | None = None,
) -> Any:  # fmt: skip
    """Equal extrema share the gradient; a factor's gradient is the product of the other factors."""
    if not x.numel() or not grad.numel():
        return NotImplemented
    in_segment, element_axis = _segments(x, lengths, offsets, axis), axis + 1
    grad, reduced, x = grad.unsqueeze(element_axis), reduced.unsqueeze(element_axis), x.unsqueeze(axis)
    if reduce == "mean":
        grad = grad / in_segment.sum(element_axis, keepdim=True).clamp(min=1)
    elif reduce in ("max", "min"):
        in_segment = in_segment & ((x == reduced) | (x.isnan() & reduced.isnan()))
        grad = grad / in_segment.sum(element_axis, keepdim=True).clamp(min=1)
    elif reduce == "prod":
        grad = grad * _product_of_others(x, in_segment, element_axis) * (1.0 if initial is None else initial)
    return torch.where(in_segment, grad, 0).sum(axis)


def _product_of_others(x: Tensor, in_segment: Tensor, element_axis: int) -> Tensor:
    is_zero, is_nan = (in_segment & (x == 0)), in_segment & x.isnan()
    factors = torch.where(in_segment & ~is_zero & ~is_nan, x, 1)
    others = factors.prod(element_axis, keepdim=True) / factors
    zeros, nans = (mask.sum(element_axis, keepdim=True) - mask.long() for mask in (is_zero, is_nan))
    return torch.where(nans > 0, math.nan, torch.where(zeros > 0, 0, others))


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "frexp.Tensor": _frexp, "ldexp.Tensor": _ldexp, "nextafter.default": _nextafter,
    "segment_reduce.default": _segment_reduce, "_segment_reduce_backward.default": _segment_reduce_backward,
}  # fmt: skip
