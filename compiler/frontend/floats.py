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
    size = x.abs()
    found = size.log2().floor() + 1
    found = torch.where(size >= torch.exp2(found), found + 1, found)
    return torch.where(size < torch.exp2(found - 1), found - 1, found)


def _frexp(x: Tensor) -> Any:
    if x.dtype is torch.float64:
        return NotImplemented
    plain = x.isfinite() & (x != 0)
    wide = torch.where(plain, x, 1).to(torch.float64)
    exponent = _exponent(wide)
    mantissa = (wide * torch.exp2(-exponent)).to(x.dtype)
    whole = mantissa.abs() == 1  # a power of two whose logarithm was rounded down
    mantissa, exponent = torch.where(whole, mantissa / 2, mantissa), torch.where(whole, exponent + 1, exponent)
    return torch.where(plain, mantissa, x), torch.where(plain, exponent, 0).to(torch.int32)


def _nextafter(x: Tensor, y: Tensor) -> Any:
    """Round x plus or minus 0.625 * eps * |x| to nearest, a step of 0.625 to 1.25 spacings.

    From a power of two towards zero, where spacings are half as long, the step is 1.25 of those.
    """
    if x.dtype is torch.float64 or x.dtype != y.dtype:
        return NotImplemented
    x, kind = x.to(torch.float32).to(x.dtype), torch.finfo(x.dtype)  # the neighbour is that of the stored value
    x, y = torch.broadcast_tensors(x, y)  # type: ignore[no-untyped-call]
    wide, least = x.to(torch.float64), kind.smallest_normal * kind.eps
    step = (wide.abs() * (0.625 * kind.eps)).clamp(min=0.75 * least)
    found = (wide + torch.where(y > x, step, -step)).to(x.dtype)
    found = torch.where(x.isinf(), torch.copysign(torch.full_like(x, kind.max), x), found)
    return torch.where(x == y, y, torch.where(x.isnan() | y.isnan(), math.nan, found))


def _ldexp(x: Tensor, n: Tensor) -> Tensor:
    """x * 2^n. 2^n may overflow for an integer n although the product does not, so n is applied in steps."""
    if not x.is_floating_point() or n.is_floating_point():
        two = x.new_full((), 2.0, dtype=x.dtype if x.is_floating_point() else torch.float32)
        return x * torch.pow(two, n)
    wide, steps = x.to(torch.float64), ((300,) if x.dtype is not torch.float64 else (1000, 1000, 100))
    for step in steps:
        part = n.to(torch.int64).clamp(-step, step)
        wide, n = wide * torch.exp2(part.to(torch.float64)), n - part
    return wide.to(x.dtype)


_START = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


def _segment_reduce(
    x: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Any:  # fmt: skip
    """Reduce segments, given by `lengths` or `offsets`. Each segment reads all elements and masks the others."""
    del unsafe
    if indices is not None or not x.numel() or (offsets is None and lengths is None):
        return NotImplemented
    inside = _segments(x, lengths, offsets, axis)
    start = _START[reduce] if initial is None else initial
    rows = torch.where(inside, x.unsqueeze(axis), _START[reduce])
    along = axis + 1
    if reduce in ("max", "min"):
        return rows.amax(along).clamp(min=start) if reduce == "max" else rows.amin(along).clamp(max=start)
    if reduce == "prod":
        return rows.prod(along) * start
    made = rows.sum(along) + start
    if reduce == "sum":
        return made
    count = inside.sum(along)
    empty = math.nan if initial is None else start
    return torch.where(count == 0, empty, made / count.clamp(min=1)).to(x.dtype)


def _segments(x: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> Tensor:
    """The mask of the elements in each segment; the axis of segments is followed by the axis of elements."""
    if offsets is not None:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    else:
        assert lengths is not None, "segments have lengths or offsets"
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    places = torch.arange(x.shape[axis], device=x.device)
    inside = (places >= starts.unsqueeze(-1)) & (places < ends.unsqueeze(-1))
    return inside.reshape(*inside.shape, *[1] * (x.dim() - axis - 1))


def _segment_reduce_backward(
    grad: Tensor, made: Tensor, x: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: float | None = None,
) -> Any:  # fmt: skip
    """Equal extrema share the gradient; a factor's gradient is the product of the other factors."""
    if not x.numel() or not grad.numel():
        return NotImplemented
    inside, along = _segments(x, lengths, offsets, axis), axis + 1
    grad, made, x = grad.unsqueeze(along), made.unsqueeze(along), x.unsqueeze(axis)
    if reduce == "mean":
        grad = grad / inside.sum(along, keepdim=True).clamp(min=1)
    elif reduce in ("max", "min"):
        inside = inside & ((x == made) | (x.isnan() & made.isnan()))
        grad = grad / inside.sum(along, keepdim=True).clamp(min=1)
    elif reduce == "prod":
        grad = grad * _product_of_others(x, inside, along) * (1.0 if initial is None else initial)
    return torch.where(inside, grad, 0).sum(axis)


def _product_of_others(x: Tensor, inside: Tensor, along: int) -> Tensor:
    none, unknown = (inside & (x == 0)), inside & x.isnan()
    rest = torch.where(inside & ~none & ~unknown, x, 1)
    others = rest.prod(along, keepdim=True) / rest
    zeros, unknowns = (holds.sum(along, keepdim=True) - holds.long() for holds in (none, unknown))
    return torch.where(unknowns > 0, math.nan, torch.where(zeros > 0, 0, others))


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "frexp.Tensor": _frexp, "ldexp.Tensor": _ldexp, "nextafter.default": _nextafter,
    "segment_reduce.default": _segment_reduce, "_segment_reduce_backward.default": _segment_reduce_backward,
}  # fmt: skip
