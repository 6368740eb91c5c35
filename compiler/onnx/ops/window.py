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


def _of(table: dict[int, Any], rank: int) -> Any:
    if rank not in table:
        raise Unsupported("onnx window", (f"{rank} axes",), "windows have 1 to 3")
    return table[rank]


def _places(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int] | None, pads: Sequence[int] | None,
    dilations: Sequence[int] | None, auto_pad: str,
) -> tuple[list[int], list[int], list[int], list[int]]:  # fmt: skip
    """Strides, dilations, and the padding before and after each axis."""
    rank = len(kernel)
    step, far = list(strides or [1] * rank), list(dilations or [1] * rank)
    given = list(pads or [0] * 2 * rank)
    low, high = given[:rank], given[rank:]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = x.shape[2:]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, far, strict=True)]
        total = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, step, spans, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        low, high = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    elif auto_pad == "VALID":
        low, high = [0] * rank, [0] * rank
    return step, far, low, high


def _padded(x: Tensor, low: Sequence[int], high: Sequence[int], value: float = 0) -> Tensor:
    around = [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
    return F.pad(x, around, value=value) if any(around) else x


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    step, far, low, high = _places(x, weight.shape[2:], strides, pads, dilations, auto_pad)
    call = _of(_CONV, len(step))
    if low != high:
        x, low = _padded(x, low, high), [0] * len(low)
    made: Tensor = call(x, weight, bias, step, low, far, group)
    return made


def _conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None, pads: Any = None,
    strides: Any = None,
) -> Tensor:  # fmt: skip
    """The full transposed convolution, cropped by the padding."""
    kernel = list(weight.shape[2:])
    step, far, low, high = _places(x, kernel, strides, pads, dilations, "NOTSET")
    extra = list(output_padding or [0] * len(kernel))
    whole = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], step, kernel, far, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") and output_shape is None:
        output_shape = [n * s for n, s in zip(x.shape[2:], step, strict=True)]
    if output_shape is not None:
        total = [w + e - n for w, e, n in zip(whole, extra, output_shape[-len(kernel) :], strict=True)]
        half = [max(t, 0) // 2 for t in total]
        low = half if auto_pad == "SAME_UPPER" else [max(t, 0) - h for t, h in zip(total, half, strict=True)]
        high = [t - n for t, n in zip(total, low, strict=True)]
    made: Tensor = _of(_TRANSPOSED, len(kernel))(x, weight, bias, step, 0, 0, group, far)
    if bias is not None and any(e > h for e, h in zip(extra, high, strict=True)):
        raise Unsupported("onnx.ConvTranspose", (f"output_padding={extra}",), "a bias beyond the windows")
    return _padded(made, [-n for n in low], [e - n for e, n in zip(extra, high, strict=True)])


def _rounded_up(
    x: Tensor, kernel: Sequence[int], step: Sequence[int], far: Sequence[int], low: Sequence[int], high: Sequence[int]
) -> list[int]:
    """The additional padding per axis for the last window of a rounded-up size, which must begin inside."""
    out = []
    for n, k, s, d, a, b in zip(x.shape[2:], kernel, step, far, low, high, strict=True):
        room = n + a + b - ((k - 1) * d + 1)
        last = -(-room // s) * s
        out.append(max(last - room, 0) if last < n + a else 0)
    return out


def _max_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None, kernel_shape: list[int],
    pads: Any = None, storage_order: int = 0, strides: Any = None, outputs: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Maxima and their flat indices in the whole tensor; in storage order 1 as if the last two axes were swapped."""
    step, far, low, high = _places(x, kernel_shape, strides, pads, dilations, auto_pad)
    more = _rounded_up(x, kernel_shape, step, far, low, high) if ceil_mode else [0] * len(step)
    least = -float("inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    sizes = list(x.shape[2:])
    small = all(2 * p <= k for p, k in zip(low, kernel_shape, strict=True))
    call = _of(_MAX, len(step))
    if low == high and not any(more) and small and x.is_floating_point():
        pool, at = low, [0] * len(low)
    else:
        x, pool, at = _padded(x, low, [h + m for h, m in zip(high, more, strict=True)], least), [0] * len(low), low
    if not any(outputs[1:]):
        if x.is_floating_point():
            return (call(x, kernel_shape, step, pool, far),)
        return (call(x.to(torch.int64).double(), kernel_shape, step, pool, far).to(x.dtype),)
    made, found = call(x, kernel_shape, step, pool, far, False, True)
    wide, axes = x.shape[2:], range(len(sizes))
    places = []
    for axis in reversed(axes):
        places.append(found % wide[axis] - at[axis])
        found = found // wide[axis]
    places.reverse()
    order = [*axes[:-2], *reversed(axes[-2:])] if storage_order else list(axes)
    linear = torch.zeros_like(places[0])
    for axis in order:
        linear = linear * sizes[axis] + places[axis]
    planes = torch.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(sizes))
    return made, linear + planes * math.prod(sizes)


def _summed(x: Tensor, kernel: Sequence[int], step: Sequence[int], far: Sequence[int]) -> Tensor:
    """The sum of each window, as a depthwise convolution."""
    ones = torch.ones(x.shape[1], 1, *kernel, dtype=x.dtype)
    made: Tensor = _of(_CONV, len(step))(x, ones, None, step, 0, far, x.shape[1])
    return made


def _average_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, dilations: Any = None,
    kernel_shape: list[int], pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    step, far, low, high = _places(x, kernel_shape, strides, pads, dilations, auto_pad)
    small = all(2 * p <= k for p, k in zip(low, kernel_shape, strict=True))
    if low == high and small and all(d == 1 for d in far):
        made: Tensor = _of(_AVERAGE, len(step))(x, kernel_shape, step, low, bool(ceil_mode), bool(count_include_pad))
        return made
    more = _rounded_up(x, kernel_shape, step, far, low, high) if ceil_mode else [0] * len(step)
    counted = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    counted = _padded(counted, low, high, 1.0 if count_include_pad else 0.0)
    counted = _padded(counted, [0] * len(more), more)
    whole = _padded(x, low, [h + m for h, m in zip(high, more, strict=True)])
    return _summed(whole, kernel_shape, step, far) / _summed(counted, kernel_shape, step, far)


def _lp_pool(
    x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None, kernel_shape: list[int],
    p: int = 2, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    step, far, low, high = _places(x, kernel_shape, strides, pads, dilations, auto_pad)
    more = _rounded_up(x, kernel_shape, step, far, low, high) if ceil_mode else [0] * len(step)
    whole = _padded(x.abs() ** p, low, [h + m for h, m in zip(high, more, strict=True)])
    return _summed(whole, kernel_shape, step, far) ** (1 / p)


def _axes(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _max_unpool(
    x: Tensor, places: Tensor, shape: list[int] | None, *, kernel_shape: list[int], pads: Any = None,
    strides: Any = None,
) -> Tensor:  # fmt: skip
    """Scatter elements to their flat indices in the default output shape, then pad to `shape` if it is given."""
    step, _, low, high = _places(x, kernel_shape, strides, pads, None, "NOTSET")
    usual = [(n - 1) * s - a - b + k for n, s, a, b, k in zip(x.shape[2:], step, low, high, kernel_shape, strict=True)]
    inner = [*x.shape[:2], *usual]
    made = torch.zeros(math.prod(inner), dtype=x.dtype).scatter(0, places.reshape(-1), x.reshape(-1)).reshape(inner)
    if shape is None:
        return made
    return _padded(made, [0] * len(usual), [n - u for n, u in zip(shape[2:], usual, strict=True)])


def _col2im(
    x: Tensor, image: list[int], block: list[int], *, dilations: Any = None, pads: Any = None, strides: Any = None
) -> Tensor:
    """Sum overlapping columns, one offset in the block after the other."""
    rank = len(image)
    step, far, low, high = _places(x, block, strides, pads, dilations, "NOTSET")
    wide = [n + a + b for n, a, b in zip(image, low, high, strict=True)]
    counts = [(w - d * (k - 1) - 1) // s + 1 for w, d, k, s in zip(wide, far, block, step, strict=True)]
    columns = x.reshape(x.shape[0], -1, math.prod(block), *counts)
    total = torch.zeros(*columns.shape[:2], math.prod(wide), dtype=x.dtype)
    for n, offset in enumerate(itertools.product(*map(range, block))):
        place = torch.zeros((), dtype=torch.int64)
        for axis in range(rank):
            along = torch.arange(counts[axis]) * step[axis] + offset[axis] * far[axis]
            place = place.unsqueeze(-1) * wide[axis] + along
        total = total.index_add(2, place.reshape(-1), columns[:, :, n].flatten(2))
    made = total.reshape(*columns.shape[:2], *wide)
    return _padded(made, [-a for a in low], [-b for b in high])


ROWS: dict[str, Row] = {
    "AveragePool": row(_average_pool),
    "Col2Im": row(_col2im, 1, 2),
    "Conv": row(conv),
    "ConvTranspose": row(_conv_transpose),
    "GlobalAveragePool": row(lambda x: x.mean(_axes(x), keepdim=True)),
    "GlobalLpPool": row(lambda x, *, p=2: (x.abs() ** p).sum(_axes(x), keepdim=True) ** (1 / p)),
    "GlobalMaxPool": row(lambda x: x.amax(_axes(x), keepdim=True)),
    "LpPool": row(_lp_pool),
    "MaxPool": row(_max_pool),
    "MaxUnpool": row(_max_unpool, 2),
}
