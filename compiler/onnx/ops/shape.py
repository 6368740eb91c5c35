"""Ops that create tensors, query sizes, reshape, slice and pad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.errors import Unsupported
from compiler.onnx import model as models
from compiler.onnx.ops.row import Row, axis_of, row


def _constant(
    *, value: Any = None, value_float: float | None = None, value_floats: list[float] | None = None,
    value_int: int | None = None, value_ints: list[int] | None = None,
) -> Tensor:  # fmt: skip
    if value is not None:
        return models.tensor(value)
    number = value_float if value_floats is None else value_floats
    if number is not None:
        return torch.tensor(number, dtype=torch.float32)
    return torch.tensor(value_int if value_ints is None else value_ints, dtype=torch.int64)


def _constant_of_shape(shape: list[int], *, value: Any = None) -> Tensor:
    filled = torch.zeros(1) if value is None else models.tensor(value)
    return filled.expand(shape).clone() if shape else filled.reshape(())


def _reshape(x: Tensor, shape: list[int], *, allowzero: int = 0) -> Tensor:
    """-1 stands for the remaining size; 0 for the size of that axis in `x`, unless `allowzero`."""
    target = [x.shape[n] if size == 0 and not allowzero else size for n, size in enumerate(shape)]
    if -1 in target:
        rest = math.prod(size for size in target if size != -1)
        target[target.index(-1)] = x.numel() // rest if rest else 0
    return x.reshape(target)


def _flatten(x: Tensor, *, axis: int) -> Tensor:
    first_dim = axis if axis >= 0 else axis + x.dim()
    return x.reshape(math.prod(x.shape[:first_dim]), math.prod(x.shape[first_dim:]))


def _unsqueeze(x: Tensor, axes: list[int] | int) -> Tensor:
    dims = [axes] if isinstance(axes, int) else axes
    rank = x.dim() + len(dims)
    for dim in sorted(axis_of(a, rank) for a in dims):
        x = x.unsqueeze(dim)
    return x


def _expand(x: Tensor, shape: list[int]) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, shape))  # type: ignore[no-untyped-call]


def _split(
    x: Tensor, sizes: list[int] | None = None, *, axis: int, num_outputs: int = 0, outputs: Sequence[bool]
) -> tuple[Tensor, ...]:
    """Parts of the given sizes; by default of equal sizes, except that the last one may be smaller."""
    extent = x.shape[axis]
    if sizes is None:
        part_size = -(-extent // (num_outputs or len(outputs)))
        sizes = [min(part_size, max(extent - n * part_size, 0)) for n in range(num_outputs or len(outputs))]
    return tuple(torch.split(x, sizes, axis))


def _slice(
    x: Tensor, starts: list[int], ends: list[int], axes: list[int] | None = None, steps: list[int] | None = None
) -> Tensor:
    for n, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axis_of(axes[n], x.dim()) if axes is not None else n
        extent = x.shape[axis]
        positions = range(*slice(start, end, steps[n] if steps is not None else 1).indices(extent))
        if not positions:
            x = x.narrow(axis, 0, 0)
            continue
        is_reversed = positions.step < 0
        first = extent - 1 - positions.start if is_reversed else positions.start
        x = x.flip(axis) if is_reversed else x
        slices = [slice(None)] * x.dim()
        slices[axis] = slice(first, first + abs(positions.step) * (len(positions) - 1) + 1, abs(positions.step))
        x = x[tuple(slices)]
    return x


def _range(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    count = max(0, math.ceil((limit.double().item() - start.double().item()) / delta.double().item()))
    return start + torch.arange(count).to(start.dtype) * delta


def _eye_like(x: Tensor, *, dtype: int | None = None, k: int) -> Tensor:
    rows, columns = x.shape
    kind = x.dtype if dtype is None else models.dtype(dtype)
    return (torch.arange(columns) == torch.arange(rows).unsqueeze(1) + k).to(kind)


def _trilu(x: Tensor, k: int | list[int] | None, *, upper: int) -> Tensor:
    offset = k[0] if isinstance(k, list) else k or 0
    return torch.triu(x, offset) if upper else torch.tril(x, offset)


def _pad(
    x: Tensor, pads: list[int], constant: Any = None, axes: list[int] | None = None, *, mode: str, value: float = 0.0
) -> Tensor:
    numpy: Any = models.library("numpy")
    dims = list(range(x.dim())) if axes is None else [axis_of(a, x.dim()) for a in axes]
    before = dict(zip(dims, pads[: len(dims)], strict=True))
    after = dict(zip(dims, pads[len(dims) :], strict=True))
    if mode == "constant":
        fill_value = constant[0] if isinstance(constant, list) else value if constant is None else constant
        widths = [n for a in reversed(range(x.dim())) for n in (before.get(a, 0), after.get(a, 0))]
        return F.pad(x, widths, value=fill_value)
    for axis in dims:
        low, high = before[axis], after[axis]
        x = x.narrow(axis, max(-low, 0), x.shape[axis] - max(-low, 0) - max(-high, 0))
        if low > 0 or high > 0:
            positions = numpy.pad(numpy.arange(x.shape[axis]), (max(low, 0), max(high, 0)), mode=mode)
            x = x.index_select(axis, torch.tensor(positions.tolist(), device=x.device))
    return x


def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b, inner = blocksize, c // blocksize**2
    if mode == "DCR":
        split = x.reshape(n, b, b, inner, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        split = x.reshape(n, inner, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return split.reshape(n, inner, h * b, w * b)


def _space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    split = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return split.permute(order).reshape(n, c * b * b, h // b, w // b)


def _center_crop_pad(x: Tensor, shape: list[int], *, axes: list[int] | None = None) -> Tensor:
    dims = list(range(x.dim())) if axes is None else [axis_of(a, x.dim()) for a in axes]
    for axis, size in zip(dims, shape, strict=True):
        extent = x.shape[axis]
        if size <= extent:
            x = x.narrow(axis, (extent - size) // 2, size)
        else:
            low = (size - extent) // 2
            x = _pad(x, [low, size - extent - low], None, [axis], mode="constant")
    return x


def _dropout(
    x: Tensor, ratio: float | None = None, training: bool | None = None, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The identity; training is refused, as it is random."""
    if training and ratio != 0:
        raise Unsupported("onnx.Dropout", (), "training_mode is random")
    return x, torch.ones_like(x, dtype=torch.bool)


ROWS: dict[str, Row] = {
    "BitCast": row(lambda x, *, to: x.view(models.dtype(to))),
    "CenterCropPad": row(_center_crop_pad, 1),
    "Concat": row(lambda *xs, axis: torch.cat(xs, axis)),
    "Constant": row(_constant),
    "ConstantOfShape": row(_constant_of_shape, 0),
    "DepthToSpace": row(_depth_to_space),
    "Dropout": row(_dropout, 1, 2),
    "Expand": row(_expand, 1),
    "EyeLike": row(_eye_like, static=True),
    "Flatten": row(_flatten),
    "Pad": row(_pad, 1, 2, 3),
    "Range": row(_range, 0, 1, 2, as_tensors=True),
    "Reshape": row(_reshape, 1),
    "Shape": row(
        lambda x, *, start=0, end=None: torch.tensor(list(x.shape)[start:end], dtype=torch.int64), static=True
    ),
    "Size": row(lambda x: torch.tensor(x.numel()), static=True),
    "Slice": row(_slice, 1, 2, 3, 4),
    "SpaceToDepth": row(_space_to_depth),
    "Split": row(_split, 1),
    "Squeeze": row(
        lambda x, axes=None: x.squeeze() if axes is None else x.squeeze([axis_of(a, x.dim()) for a in axes]), 1
    ),
    "Tile": row(lambda x, repeats: x.repeat(repeats), 1),
    "Transpose": row(lambda x, *, perm=None: x.permute(perm if perm is not None else list(range(x.dim()))[::-1])),
    "Trilu": row(_trilu, 1),
    "Unsqueeze": row(_unsqueeze, 1),
}
