"""Gathers and scatters: ops that read or write elements at computed indices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from compiler.onnx.ops.row import Row, axis_of, row

_SCATTER_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _wrap_negative(index: Tensor, size: int) -> Tensor:
    """Negative indices count from the end."""
    return torch.where(index < 0, index + size, index).to(torch.int64)


def _gather(x: Tensor, index: Tensor, *, axis: int) -> Tensor:
    dim = axis_of(axis, x.dim())
    gathered = x.index_select(dim, _wrap_negative(index, x.shape[dim]).reshape(-1))
    return gathered.reshape([*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]])


def _scatter(x: Tensor, index: Tensor, updates: Tensor, *, axis: int, reduction: str = "none") -> Tensor:
    positions = _wrap_negative(index, x.shape[axis])
    if reduction == "none":
        return torch.scatter(x, axis, positions, updates)
    return torch.scatter_reduce(x, axis, positions, updates, _SCATTER_REDUCTIONS[reduction])


def _flat_index(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flat indices from indices into several axes, which are along the last axis of `index`."""
    flat = torch.zeros(index.shape[:-1], dtype=torch.int64)
    for n, size in enumerate(shape):
        flat = flat * size + _wrap_negative(index[..., n], size)
    return flat


def _gather_nd(x: Tensor, index: Tensor, *, batch_dims: int) -> Tensor:
    b, depth = batch_dims, index.shape[-1]
    batch = math.prod(x.shape[:b])
    sizes, rest = tuple(x.shape[b : b + depth]), tuple(x.shape[b + depth :])
    rows_read = _flat_index(index, sizes).reshape(batch, -1)
    rows_read = rows_read + torch.arange(batch).unsqueeze(1) * math.prod(sizes)
    rows = x.reshape(batch * math.prod(sizes), *rest)
    return rows.index_select(0, rows_read.reshape(-1)).reshape([*index.shape[:-1], *rest])


def _scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = index.shape[-1]
    sizes, width = tuple(x.shape[:depth]), math.prod(x.shape[depth:])
    flat = x.reshape(math.prod(sizes), width)
    rows_written = _flat_index(index, sizes).reshape(-1, 1).expand(-1, width)
    scattered = _scatter(flat, rows_written, updates.reshape(-1, width), axis=0, reduction=reduction)
    return scattered.reshape(x.shape)


def _tensor_scatter(past: Tensor, update: Tensor, begin: Tensor | None, *, axis: int, mode: str) -> Tensor:
    """Write rows from a start index per batch; in circular mode, they wrap around."""
    dim, size = axis_of(axis, past.dim()), past.shape[axis]
    starts = torch.zeros(past.shape[0], dtype=torch.int64) if begin is None else begin
    positions = starts.reshape(-1, *[1] * (past.dim() - 1))
    shape = [1] * past.dim()
    shape[dim] = -1
    positions = positions + torch.arange(update.shape[dim]).reshape(shape)
    positions = positions % size if mode == "circular" else positions
    return torch.scatter(past, dim, positions.expand(update.shape), update)


def _one_hot(index: Tensor, depth: Any, values: Tensor, *, axis: int) -> Tensor:
    count = int(depth[0] if isinstance(depth, list) else depth)
    dim = axis_of(axis, index.dim() + 1)
    positions = _wrap_negative(index, count).unsqueeze(dim)
    shape = [1] * positions.dim()
    shape[dim] = count
    return torch.where(positions == torch.arange(count).reshape(shape), values[1], values[0])


def _top_k(x: Tensor, k: Any, *, axis: int, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    count = int(k[0] if isinstance(k, list) else k)
    values, indices = torch.topk(x, count, axis, bool(largest))
    return values, indices


def _compress(x: Tensor, condition: list[bool], *, axis: int | None = None) -> Tensor:
    x = x.reshape(-1) if axis is None else x
    positions = [n for n, selected in enumerate(condition) if selected]
    return x.index_select(axis or 0, torch.tensor(positions, dtype=torch.int64))


def _reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int, time_axis: int) -> Tensor:
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(moved.shape[1]).unsqueeze(0)
    ends = lengths.unsqueeze(1)
    positions = torch.where(steps < ends, ends - 1 - steps, steps)
    positions = positions.reshape(*positions.shape, *[1] * (moved.dim() - 2)).expand(moved.shape)
    return torch.gather(moved, 1, positions).movedim((0, 1), (batch_axis, time_axis))


ROWS: dict[str, Row] = {
    "Compress": row(_compress, 1),
    "Gather": row(_gather),
    "GatherElements": row(lambda x, index, *, axis: torch.gather(x, axis, _wrap_negative(index, x.shape[axis]))),
    "GatherND": row(_gather_nd),
    "OneHot": row(_one_hot, 1),
    "ReverseSequence": row(_reverse_sequence),
    "Scatter": row(_scatter),
    "ScatterElements": row(_scatter),
    "ScatterND": row(_scatter_nd),
    "TensorScatter": row(_tensor_scatter),
    "TopK": row(_top_k, 1),
}
