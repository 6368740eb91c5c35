"""Convolutions and pooling over windows of 1 to 3 axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.errors import Unsupported
from compiler.onnx.ops.row import Row, row

_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _for_rank(table: dict[int, Any], rank: int) -> Any:
    if rank not in table:
        raise Unsupported("onnx window", (f"{rank} axes",), "windows have 1 to 3")
    return table[rank]


def _window_geometry(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int] | None, pads: Sequence[int] | None,
    dilations: Sequence[int] | None, auto_pad: str,
) -> tuple[list[int], list[int], list[int], list[int]]:  # fmt: skip
    """Strides, dilations, and the padding before and after each axis."""
    rank = len(kernel)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    padding = list(pads or [0] * 2 * rank)
    low, high = padding[:rank], padding[rank:]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = x.shape[2:]
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        total = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, stride, extents, strict=True)]
        smaller, larger = [t // 2 for t in total], [t - t // 2 for t in total]
        low, high = (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)
    elif auto_pad == "VALID":
        low, high = [0] * rank, [0] * rank
    return stride, dilation, low, high


def _pad(x: Tensor, low: Sequence[int], high: Sequence[int], value: float = 0) -> Tensor:
    widths = [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
    return F.pad(x, widths, value=value) if any(widths) else x


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    stride, dilation, low, high = _window_geometry(x, weight.shape[2:], strides, pads, dilations, auto_pad)
    call = _for_rank(_CONV, len(stride))
    if low != high:
        x, low = _pad(x, low, high), [0] * len(low)
    result: Tensor = call(x, weight, bias, stride, low, dilation, group)
    return result


def _conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None, pads: Any = None,
    strides: Any = None,
) -> Tensor:  # fmt: skip
    """The full transposed convolution, cropped by the padding."""
    kernel = list(weight.shape[2:])
    stride, dilation, low, high = _window_geometry(x, kernel, strides, pads, dilations, "NOTSET")
    extra = list(output_padding or [0] * len(kernel))
    full_sizes = [
        (n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], stride, kernel, dilation, strict=True)
    ]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") and output_shape is None:
        output_shape = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    if output_shape is not None:
        total = [w + e - n for w, e, n in zip(full_sizes, extra, output_shape[-len(kernel) :], strict=True)]
        half = [max(t, 0) // 2 for t in total]
        low = half if auto_pad == "SAME_UPPER" else [max(t, 0) - h for t, h in zip(total, half, strict=True)]
        high = [t - n for t, n in zip(total, low, strict=True)]
    full: Tensor = _for_rank(_TRANSPOSED, len(kernel))(x, weight, bias, stride, 0, 0, group, dilation)
    if bias is not None and any(e > h for e, h in zip(extra, high, strict=True)):
        raise Unsupported("onnx.ConvTranspose", (f"output_padding={extra}",), "a bias beyond the windows")
    return _pad(full, [-n for n in low], [e - n for e, n in zip(extra, high, strict=True)])


def _ceil_padding(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
) -> list[int]:
    """The additional padding per axis for the last window of a rounded-up size, which must begin inside."""
    out = []
    for n, k, s, d, a, b in zip(x.shape[2:], kernel, stride, dilation, low, high, strict=True):
        span = n + a + b - ((k - 1) * d + 1)
        last_start = -(-span // s) * s
        out.append(max(last_start - span, 0) if last_start < n + a else 0)
    return out


def _max_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None, kernel_shape: list[int],
    pads: Any = None, storage_order: int = 0, strides: Any = None, outputs: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Maxima and their flat indices in the whole tensor; in storage order 1 as if the last two axes were swapped."""
    stride, dilation, low, high = _window_geometry(x, kernel_shape, strides, pads, dilations, auto_pad)
    ceil_padding = _ceil_padding(x, kernel_shape, stride, dilation, low, high) if ceil_mode else [0] * len(stride)
    lowest = -float("inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    sizes = list(x.shape[2:])
    is_half_kernel = all(2 * p <= k for p, k in zip(low, kernel_shape, strict=True))
    call = _for_rank(_MAX, len(stride))
    if low == high and not any(ceil_padding) and is_half_kernel and x.is_floating_point():
        pool_padding, margin = low, [0] * len(low)
    else:
        x, pool_padding, margin = (
            _pad(x, low, [h + m for h, m in zip(high, ceil_padding, strict=True)], lowest),
            [0] * len(low),
            low,
        )
    if not any(outputs[1:]):
        if x.is_floating_point():
            return (call(x, kernel_shape, stride, pool_padding, dilation),)
        return (call(x.to(torch.int64).double(), kernel_shape, stride, pool_padding, dilation).to(x.dtype),)
    maxima, flat_index = call(x, kernel_shape, stride, pool_padding, dilation, False, True)
    padded_sizes, axes = x.shape[2:], range(len(sizes))
    coordinates = []
    for axis in reversed(axes):
        coordinates.append(flat_index % padded_sizes[axis] - margin[axis])
        flat_index = flat_index // padded_sizes[axis]
    coordinates.reverse()
    order = [*axes[:-2], *reversed(axes[-2:])] if storage_order else list(axes)
    linear = torch.zeros_like(coordinates[0])
    for axis in order:
        linear = linear * sizes[axis] + coordinates[axis]
    planes = torch.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(sizes))
    return maxima, linear + planes * math.prod(sizes)


def _window_sums(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """The sum of each window, as a depthwise convolution."""
    ones = torch.ones(x.shape[1], 1, *kernel, dtype=x.dtype)
    sums: Tensor = _for_rank(_CONV, len(stride))(x, ones, None, stride, 0, dilation, x.shape[1])
    return sums


def _average_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, dilations: Any = None,
    kernel_shape: list[int], pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    stride, dilation, low, high = _window_geometry(x, kernel_shape, strides, pads, dilations, auto_pad)
    is_half_kernel = all(2 * p <= k for p, k in zip(low, kernel_shape, strict=True))
    if low == high and is_half_kernel and all(d == 1 for d in dilation):
        average: Tensor = _for_rank(_AVERAGE, len(stride))(
            x, kernel_shape, stride, low, bool(ceil_mode), bool(count_include_pad)
        )
        return average
    ceil_padding = _ceil_padding(x, kernel_shape, stride, dilation, low, high) if ceil_mode else [0] * len(stride)
    mask = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    mask = _pad(mask, low, high, 1.0 if count_include_pad else 0.0)
    mask = _pad(mask, [0] * len(ceil_padding), ceil_padding)
    padded = _pad(x, low, [h + m for h, m in zip(high, ceil_padding, strict=True)])
    return _window_sums(padded, kernel_shape, stride, dilation) / _window_sums(mask, kernel_shape, stride, dilation)


def _lp_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None, kernel_shape: list[int],
    p: int = 2, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    stride, dilation, low, high = _window_geometry(x, kernel_shape, strides, pads, dilations, auto_pad)
    ceil_padding = _ceil_padding(x, kernel_shape, stride, dilation, low, high) if ceil_mode else [0] * len(stride)
    padded = _pad(x.abs() ** p, low, [h + m for h, m in zip(high, ceil_padding, strict=True)])
    return _window_sums(padded, kernel_shape, stride, dilation) ** (1 / p)


def _spatial_dims(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _max_unpool(
    x: Tensor, indices: Tensor, shape: list[int] | None, *, kernel_shape: list[int], pads: Any = None,
    strides: Any = None,
) -> Tensor:  # fmt: skip
    """Scatter elements to their flat indices in the default output shape, then pad to `shape` if it is given."""
    stride, _, low, high = _window_geometry(x, kernel_shape, strides, pads, None, "NOTSET")
    default_sizes = [
        (n - 1) * s - a - b + k for n, s, a, b, k in zip(x.shape[2:], stride, low, high, kernel_shape, strict=True)
    ]
    full_shape = [*x.shape[:2], *default_sizes]
    scattered = (
        torch.zeros(math.prod(full_shape), dtype=x.dtype)
        .scatter(0, indices.reshape(-1), x.reshape(-1))
        .reshape(full_shape)
    )
    if shape is None:
        return scattered
    return _pad(scattered, [0] * len(default_sizes), [n - u for n, u in zip(shape[2:], default_sizes, strict=True)])


def _col2im(
    x: Tensor, image: list[int], block: list[int], *, dilations: Any = None, pads: Any = None, strides: Any = None
) -> Tensor:
    """Sum overlapping columns, one offset in the block after the other."""
    rank = len(image)
    stride, dilation, low, high = _window_geometry(x, block, strides, pads, dilations, "NOTSET")
    padded_sizes = [n + a + b for n, a, b in zip(image, low, high, strict=True)]
    counts = [(w - d * (k - 1) - 1) // s + 1 for w, d, k, s in zip(padded_sizes, dilation, block, stride, strict=True)]
    columns = x.reshape(x.shape[0], -1, math.prod(block), *counts)
    total = torch.zeros(*columns.shape[:2], math.prod(padded_sizes), dtype=x.dtype)
    for n, offset in enumerate(itertools.product(*map(range, block))):
        flat_index = torch.zeros((), dtype=torch.int64)
        for axis in range(rank):
            positions = torch.arange(counts[axis]) * stride[axis] + offset[axis] * dilation[axis]
            flat_index = flat_index.unsqueeze(-1) * padded_sizes[axis] + positions
        total = total.index_add(2, flat_index.reshape(-1), columns[:, :, n].flatten(2))
    image_sums = total.reshape(*columns.shape[:2], *padded_sizes)
    return _pad(image_sums, [-a for a in low], [-b for b in high])


ROWS: dict[str, Row] = {
    "AveragePool": row(_average_pool),
    "Col2Im": row(_col2im, 1, 2),
    "Conv": row(conv),
    "ConvTranspose": row(_conv_transpose),
    "GlobalAveragePool": row(lambda x: x.mean(_spatial_dims(x), keepdim=True)),
    "GlobalLpPool": row(lambda x, *, p=2: (x.abs() ** p).sum(_spatial_dims(x), keepdim=True) ** (1 / p)),
    "GlobalMaxPool": row(lambda x: x.amax(_spatial_dims(x), keepdim=True)),
    "LpPool": row(_lp_pool),
    "MaxPool": row(_max_pool),
    "MaxUnpool": row(_max_unpool, 2),
}
