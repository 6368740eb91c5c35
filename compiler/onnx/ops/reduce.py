"""Reductions along axes, and normalisations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.frontend import widened
from compiler.onnx.ops.row import Row, axis_of, row

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(
    reduction: Reduction, x: Tensor, axes: list[int] | None = None, *, keepdims: int, noop_with_empty_axes: int = 0
) -> Tensor:
    """Reduce the given axes; without any, all axes, or none if `noop_with_empty_axes`."""
    if not axes and noop_with_empty_axes:
        return reduction(x.unsqueeze(-1), [x.dim()], False)
    dims = sorted({axis_of(a, x.dim()) for a in axes}) if axes else list(range(x.dim()))
    return reduction(x, dims, bool(keepdims)) if dims else reduction(x.unsqueeze(-1), [0], False)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _extreme(is_maximum: bool, x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The extreme; for no elements, the type's lowest value for a maximum and highest for a minimum."""
    if x.numel() == 0:
        reduced = torch.sum(x, axes, keepdim=keep)
        if x.dtype is torch.bool:
            return torch.full(reduced.shape, not is_maximum)
        if x.is_floating_point():
            return torch.full(reduced.shape, -float("inf") if is_maximum else float("inf"), dtype=x.dtype)
        limits = torch.iinfo(x.dtype)
        return torch.full(reduced.shape, limits.min if is_maximum else limits.max, dtype=x.dtype)
    return (torch.amax if is_maximum else torch.amin)(x, axes, keepdim=keep)


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, axes, keepdim=keep)
    total = _sum(x, axes, keep)
    return torch.div(total, x.numel() // max(total.numel(), 1), rounding_mode="trunc")


def _arg(is_maximum: bool, x: Tensor, *, axis: int, keepdims: int, select_last_index: int = 0) -> Tensor:
    x = x.to(torch.uint8) if x.dtype is torch.bool else x
    index = (torch.argmax if is_maximum else torch.argmin)(
        x.flip(axis) if select_last_index else x, axis, bool(keepdims)
    )
    return x.shape[axis] - 1 - index if select_last_index else index


def _flat_softmax(function: Callable[..., Tensor], x: Tensor, *, axis: int) -> Tensor:
    dim = axis_of(axis, x.dim())
    return function(x.flatten(dim), dim).reshape(x.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    positions = torch.arange(x.shape[axis], device=x.device)
    argmax = torch.argmax(x, axis, keepdim=True).transpose(axis, -1)
    return (argmax == positions).transpose(axis, -1).to(x.dtype)


def _softmax_like(function: Callable[..., Tensor], x: Tensor, *, axis: int) -> Tensor:
    return function(x, axis)


def _lp_normalization(x: Tensor, *, axis: int, p: int) -> Tensor:
    norm = x.abs().sum(axis, keepdim=True) if p == 1 else (x * x).sum(axis, keepdim=True).sqrt()
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


def _cumulative(
    function: Callable[..., Tensor], identity: int, x: Tensor, axis: int | list[int], *, exclusive: int, reverse: int
) -> Tensor:
    dim = axis[0] if isinstance(axis, list) else axis
    x = x.flip(dim) if reverse else x
    scanned = function(x, dim, dtype=x.dtype)
    if exclusive:
        start = torch.full_like(x.narrow(dim, 0, 1), identity)
        scanned = torch.cat([start, scanned.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return scanned.flip(dim) if reverse else scanned


def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float, momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """In training mode, use the statistics of the batch and return the updated running statistics."""
    if training_mode:
        axes = [0, *range(2, x.dim())]
        batch_mean, batch_var = x.mean(axes), x.var(axes, correction=0)
        updated = (mean * momentum + batch_mean * (1 - momentum), var * momentum + batch_var * (1 - momentum))
        return F.batch_norm(x, batch_mean, batch_var, scale, bias, False, 0.0, epsilon), *updated
    return (F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon),)


def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None, *, axis: int, epsilon: float, stash_type: int, outputs: list[bool]
) -> tuple[Tensor, ...]:
    first_dim = axis_of(axis, x.dim())
    shape = list(x.shape[first_dim:])
    if scale.shape != x.shape[first_dim:] or (bias is not None and bias.shape != x.shape[first_dim:]):
        normalized = F.layer_norm(x, shape, None, None, epsilon) * scale
        normalized = normalized if bias is None else normalized + bias
    else:
        normalized = F.layer_norm(x, shape, scale, bias, epsilon)
    if not any(outputs[1:]):
        return (normalized,)
    axes = list(range(first_dim, x.dim()))
    wide = widened(x)
    mean = wide.mean(axes, keepdim=True)
    return normalized, mean, torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)


def _rms_norm(x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int) -> Tensor:
    shape = list(x.shape[axis_of(axis, x.dim()) :])
    if list(scale.shape) == shape:
        return F.rms_norm(x, shape, scale, epsilon)
    return F.rms_norm(x, shape, None, epsilon) * scale


def _group_norm_by_group(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float, num_groups: int) -> Tensor:
    """Version 18, in which scale and bias are per group."""
    group_size = x.shape[1] // num_groups
    return F.group_norm(x, num_groups, scale.repeat_interleave(group_size), bias.repeat_interleave(group_size), epsilon)


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
