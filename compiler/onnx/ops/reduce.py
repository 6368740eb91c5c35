"""Reductions along axes, and normalisations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.onnx.ops.row import Row, axis_of, row

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(
    how: Reduction, x: Tensor, axes: list[int] | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """Reduce the given axes; without any, all axes, or none if `noop_with_empty_axes`."""
    if not axes and noop_with_empty_axes:
        return how(x.unsqueeze(-1), [x.dim()], False)
    chosen = sorted({axis_of(a, x.dim()) for a in axes}) if axes else list(range(x.dim()))
    return how(x, chosen, bool(keepdims)) if chosen else how(x.unsqueeze(-1), [0], False)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _extreme(greatest: bool, x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The extreme; for no elements, the type's lowest value for a maximum and highest for a minimum."""
    if x.numel() == 0:
        kept = torch.sum(x, axes, keepdim=keep)
        if x.dtype is torch.bool:
            return torch.full(kept.shape, not greatest)
        if x.is_floating_point():
            return torch.full(kept.shape, -float("inf") if greatest else float("inf"), dtype=x.dtype)
        limits = torch.iinfo(x.dtype)
        return torch.full(kept.shape, limits.min if greatest else limits.max, dtype=x.dtype)
    return (torch.amax if greatest else torch.amin)(x, axes, keepdim=keep)


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, axes, keepdim=keep)
    total = _sum(x, axes, keep)
    return torch.div(total, x.numel() // max(total.numel(), 1), rounding_mode="trunc")


def _arg(greatest: bool, x: Tensor, *, axis: int, keepdims: int, select_last_index: int = 0) -> Tensor:
    x = x.to(torch.uint8) if x.dtype is torch.bool else x
    found = (torch.argmax if greatest else torch.argmin)(x.flip(axis) if select_last_index else x, axis, bool(keepdims))
    return x.shape[axis] - 1 - found if select_last_index else found


def _flat_softmax(how: Callable[..., Tensor], x: Tensor, *, axis: int) -> Tensor:
    at = axis_of(axis, x.dim())
    return how(x.flatten(at), at).reshape(x.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    places = torch.arange(x.shape[axis], device=x.device)
    found = torch.argmax(x, axis, keepdim=True).transpose(axis, -1)
    return (found == places).transpose(axis, -1).to(x.dtype)


def _softmax_like(how: Callable[..., Tensor], x: Tensor, *, axis: int) -> Tensor:
    return how(x, axis)


def _lp_normalization(x: Tensor, *, axis: int, p: int) -> Tensor:
    size = x.abs().sum(axis, keepdim=True) if p == 1 else (x * x).sum(axis, keepdim=True).sqrt()
    return torch.where(size == 0, torch.zeros_like(x), x / size)


def _cumulative(
    how: Callable[..., Tensor], first: int, x: Tensor, axis: int | list[int], *, exclusive: int, reverse: int
) -> Tensor:
    at = axis[0] if isinstance(axis, list) else axis
    x = x.flip(at) if reverse else x
    made = how(x, at, dtype=x.dtype)
    if exclusive:
        begin = torch.full_like(x.narrow(at, 0, 1), first)
        made = torch.cat([begin, made.narrow(at, 0, x.shape[at] - 1)], at)
    return made.flip(at) if reverse else made


def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float, momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """In training mode, use the statistics of the batch and return the updated running statistics."""
    if training_mode:
        axes = [0, *range(2, x.dim())]
        own, spread = x.mean(axes), x.var(axes, correction=0)
        moved = (mean * momentum + own * (1 - momentum), var * momentum + spread * (1 - momentum))
        return F.batch_norm(x, own, spread, scale, bias, False, 0.0, epsilon), *moved
    return (F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon),)


def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None, *, axis: int, epsilon: float, stash_type: int, outputs: list[bool]
) -> tuple[Tensor, ...]:
    at = axis_of(axis, x.dim())
    shape = list(x.shape[at:])
    if scale.shape != x.shape[at:] or (bias is not None and bias.shape != x.shape[at:]):
        made = F.layer_norm(x, shape, None, None, epsilon) * scale
        made = made if bias is None else made + bias
    else:
        made = F.layer_norm(x, shape, scale, bias, epsilon)
    if not any(outputs[1:]):
        return (made,)
    axes = list(range(at, x.dim()))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.mean(axes, keepdim=True)
    return made, mean, torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)


def _rms_norm(x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int) -> Tensor:
    shape = list(x.shape[axis_of(axis, x.dim()) :])
    if list(scale.shape) == shape:
        return F.rms_norm(x, shape, scale, epsilon)
    return F.rms_norm(x, shape, None, epsilon) * scale


def _group_norm_by_group(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float, num_groups: int) -> Tensor:
    """Version 18, in which scale and bias are per group."""
    each = x.shape[1] // num_groups
    return F.group_norm(x, num_groups, scale.repeat_interleave(each), bias.repeat_interleave(each), epsilon)


def _lrn(x: Tensor, *, alpha: float, beta: float, bias: float, size: int) -> Tensor:
    padded = F.pad((x * x).unsqueeze(1).flatten(3), (0, 0, (size - 1) // 2, size // 2))
    total = padded.unfold(2, size, 1).sum(-1).reshape(x.shape)
    return x / (bias + alpha / size * total) ** beta


_REDUCTIONS: dict[str, Reduction] = {
    "L1": lambda x, axes, keep: _sum(x.abs(), axes, keep),
    "L2": lambda x, axes, keep: _sum(x * x, axes, keep).sqrt(),
    "LogSum": lambda x, axes, keep: _sum(x, axes, keep).log(),
    "LogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "Max": partial(_extreme, True),
    "Mean": _mean,
    "Min": partial(_extreme, False),
    "Prod": _product,
    "Sum": _sum,
    "SumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}
_SOFTMAXES: dict[str, Callable[..., Tensor]] = {"Softmax": F.softmax, "LogSoftmax": F.log_softmax, "Hardmax": _hardmax}

ROWS: dict[str, Row] = {
    **{f"Reduce{name}": row(partial(_reduce, how), 1) for name, how in _REDUCTIONS.items()},
    **{name: row(partial(_softmax_like, how)) for name, how in _SOFTMAXES.items()},
    **{f"{name}-{v}": row(partial(_flat_softmax, how)) for name, how in _SOFTMAXES.items() for v in (1, 11)},
    "ArgMax": row(partial(_arg, True)),
    "ArgMin": row(partial(_arg, False)),
    "BatchNormalization": row(_batch_norm),
    "CumProd": row(partial(_cumulative, torch.cumprod, 1), 1),
    "CumSum": row(partial(_cumulative, torch.cumsum, 0), 1),
    "GroupNormalization": row(
        lambda x, scale, bias, *, epsilon, num_groups, stash_type: F.group_norm(x, num_groups, scale, bias, epsilon)
    ),
    "GroupNormalization-18": row(_group_norm_by_group),
    "InstanceNormalization": row(
        lambda x, scale, bias, *, epsilon: F.instance_norm(x, None, None, scale, bias, True, 0.0, epsilon)
    ),
    "LRN": row(_lrn),
    "LayerNormalization": row(_layer_norm),
    "LpNormalization": row(_lp_normalization),
    "RMSNormalization": row(_rms_norm),
}
