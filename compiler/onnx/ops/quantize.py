"""Quantized ops: integers q stand for (q - zero point) * scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compiler.onnx import model as models
from compiler.onnx.ops.pointwise import FLOAT8, cast
from compiler.onnx.ops.row import Row, axis_of, row
from compiler.onnx.ops.window import conv


def _broadcast_parameter(parameter: Tensor | None, x: Tensor, axis: int, block: int) -> Tensor | None:
    """Parameters per tensor, per axis or per block along an axis, shaped to broadcast to `x`."""
    if parameter is None or parameter.dim() == 0:
        return parameter
    if block:
        dim = axis_of(axis, x.dim())
        return parameter.repeat_interleave(block, dim).narrow(dim, 0, x.shape[dim])
    if parameter.numel() == 1:
        return parameter.reshape(())
    shape = [1] * x.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


def _to_integer(value: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Round to the nearest integer, ties to even, and clamp to the type."""
    limits = torch.iinfo(dtype)
    shifted = torch.round(value) if zero_point is None else torch.round(value) + zero_point.to(value.dtype)
    return torch.clamp(shifted, limits.min, limits.max).to(dtype)


def _quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    saturate: int = 1,
) -> Tensor:  # fmt: skip
    dtype = zero_point.dtype if zero_point is not None else models.dtype(output_dtype) if output_dtype else torch.uint8
    wide = x if x.is_floating_point() else x.float()
    step, offset = (
        _broadcast_parameter(scale, x, axis, block_size),
        _broadcast_parameter(zero_point, x, axis, block_size),
    )
    assert step is not None
    if dtype in FLOAT8:
        scaled = wide / step.to(wide.dtype)
        return cast(scaled if offset is None else scaled + offset.to(wide.dtype), dtype, saturate)
    if not dtype.is_floating_point:
        return _to_integer(wide / step.to(wide.dtype), offset, dtype)
    raise TypeError(f"{dtype} is no integer")


def _dequantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
    step, offset = (
        _broadcast_parameter(scale, x, axis, block_size),
        _broadcast_parameter(zero_point, x, axis, block_size),
    )
    assert step is not None
    compute_dtype = scale.dtype if x.is_floating_point() else torch.int32
    result = (x.to(compute_dtype) if offset is None else x.to(compute_dtype) - offset.to(compute_dtype)).to(
        scale.dtype
    ) * step
    return result.to(models.dtype(output_dtype)) if output_dtype else result


def _subtract_zero_point(x: Tensor, zero_point: Tensor | None, per_row: bool) -> Tensor:
    """Integers minus the zero point; a vector of zero points is per row, or per column."""
    if zero_point is None:
        return x.to(torch.int32)
    offset = zero_point.to(torch.int32)
    return x.to(torch.int32) - (
        offset.unsqueeze(-1) if per_row and offset.dim() == 1 and offset.numel() > 1 else offset
    )


def _matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    return torch.matmul(_subtract_zero_point(a, a_zero, True), _subtract_zero_point(b, b_zero, False))


def _qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:  # fmt: skip
    product = torch.matmul(_subtract_zero_point(a, a_zero, True), _subtract_zero_point(b, b_zero, False))
    a_scale = a_scale.unsqueeze(-1) if a_scale.dim() == 1 and a_scale.numel() > 1 else a_scale  # one per row
    return _to_integer(product.float() * (a_scale.float() * b_scale.float() / y_scale.float()), y_zero, y_zero.dtype)


def _conv_integer(x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, **options: Any) -> Tensor:
    """Computed in f64, which represents all sums of products exactly."""
    zero_point = None if w_zero is None else w_zero.reshape(-1, *[1] * (w.dim() - 1))
    return conv(
        _subtract_zero_point(x, x_zero, False).double(), _subtract_zero_point(w, zero_point, False).double(), **options
    ).to(torch.int32)


def _conv_integer_row(
    x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, *, auto_pad: str = "NOTSET",
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    return _conv_integer(
        x, w, x_zero, w_zero, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
    )


def _qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor, y_scale: Tensor,
    y_zero: Tensor, bias: Tensor | None, *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1,
    kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    result = _conv_integer(
        x, w, x_zero, w_zero, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
    )
    channel_shape = [1, -1, *[1] * (result.dim() - 2)]
    result = result if bias is None else result + bias.reshape(channel_shape)
    scale = x_scale * w_scale / y_scale
    return _to_integer(
        result.float() * (scale.reshape(channel_shape) if scale.numel() > 1 else scale.reshape(())),
        y_zero,
        y_zero.dtype,
    )


ROWS: dict[str, Row] = {
    "ConvInteger": row(_conv_integer_row), "DequantizeLinear": row(_dequantize), "MatMulInteger": row(_matmul_integer),
    "QLinearConv": row(_qlinear_conv), "QLinearMatMul": row(_qlinear_matmul), "QuantizeLinear": row(_quantize),
}  # fmt: skip
