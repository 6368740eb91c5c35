"""Gathers and scatters: ops that read or write elements at computed indices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from compiler.onnx.ops.row import Row, axis_of, row

_REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _wrapped(index: Tensor, size: int) -> Tensor:
    """Negative indices count from the end."""
    return torch.where(index < 0, index + size, index).to(torch.int64)


def _gather(x: Tensor, index: Tensor, *, axis: int) -> Tensor:
    at = axis_of(axis, x.dim())
    chosen = x.index_select(at, _wrapped(index, x.shape[at]).reshape(-1))
    return chosen.reshape([*x.shape[:at], *index.shape, *x.shape[at + 1 :]])


def _scatter(x: Tensor, index: Tensor, updates: Tensor, *, axis: int, reduction: str = "none") -> Tensor:
    places = _wrapped(index, x.shape[axis])
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _REDUCED[reduction])


def _linear(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flat indices from indices into several axes, which are along the last axis of `index`."""
    found = torch.zeros(index.shape[:-1], dtype=torch.int64)
    for n, size in enumerate(shape):
        found = found * size + _wrapped(index[..., n], size)
    return found


def _gather_nd(x: Tensor, index: Tensor, *, batch_dims: int) -> Tensor:
    b, depth = batch_dims, index.shape[-1]
    batch = math.prod(x.shape[:b])
    sizes, rest = tuple(x.shape[b : b + depth]), tuple(x.shape[b + depth :])
    places = _linear(index, sizes).reshape(batch, -1)
    places = places + torch.arange(batch).unsqueeze(1) * math.prod(sizes)
    rows = x.reshape(batch * math.prod(sizes), *rest)
    return rows.index_select(0, places.reshape(-1)).reshape([*index.shape[:-1], *rest])


def _scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = index.shape[-1]
    sizes, width = tuple(x.shape[:depth]), math.prod(x.shape[depth:])
    flat = x.reshape(math.prod(sizes), width)
    places = _linear(index, sizes).reshape(-1, 1).expand(-1, width)
    made = _scatter(flat, places, updates.reshape(-1, width), axis=0, reduction=reduction)
    return made.reshape(x.shape)


def _tensor_scatter(past: Tensor, update: Tensor, begin: Tensor | None, *, axis: int, mode: str) -> Tensor:
    """Write rows from a start index per batch; in circular mode, they wrap around."""
    at, size = axis_of(axis, past.dim()), past.shape[axis]
    first = torch.zeros(past.shape[0], dtype=torch.int64) if begin is None else begin
    places = first.reshape(-1, *[1] * (past.dim() - 1))
    along = [1] * past.dim()
    along[at] = -1
    places = places + torch.arange(update.shape[at]).reshape(along)
    places = places % size if mode == "circular" else places
    return torch.scatter(past, at, places.expand(update.shape), update)


def _one_hot(index: Tensor, depth: Any, values: Tensor, *, axis: int) -> Tensor:
    count = int(depth[0] if isinstance(depth, list) else depth)
    at = axis_of(axis, index.dim() + 1)
    places = _wrapped(index, count).unsqueeze(at)
    along = [1] * places.dim()
    along[at] = count
    return torch.where(places == torch.arange(count).reshape(along), values[1], values[0])


def _top_k(x: Tensor, k: Any, *, axis: int, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    count = int(k[0] if isinstance(k, list) else k)
    values, places = torch.topk(x, count, axis, bool(largest))
    return values, places


def _compress(x: Tensor, condition: list[bool], *, axis: int | None = None) -> Tensor:
    x = x.reshape(-1) if axis is None else x
    chosen = [n for n, wanted in enumerate(condition) if wanted]
    return x.index_select(axis or 0, torch.tensor(chosen, dtype=torch.int64))


def _reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int, time_axis: int) -> Tensor:
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(moved.shape[1]).unsqueeze(0)
    ends = lengths.unsqueeze(1)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    places = places.reshape(*places.shape, *[1] * (moved.dim() - 2)).expand(moved.shape)
    return torch.gather(moved, 1, places).movedim((0, 1), (batch_axis, time_axis))


ROWS: dict[str, Row] = {
    "Compress": row(_compress, 1),
    "Gather": row(_gather),
    "GatherElements": row(lambda x, index, *, axis: torch.gather(x, axis, _wrapped(index, x.shape[axis]))),
    "GatherND": row(_gather_nd),
    "OneHot": row(_one_hot, 1),
    "ReverseSequence": row(_reverse_sequence),
    "Scatter": row(_scatter),
    "ScatterElements": row(_scatter),
    "ScatterND": row(_scatter_nd),
    "TensorScatter": row(_tensor_scatter),
    "TopK": row(_top_k, 1),
}
