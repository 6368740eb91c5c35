"""Quantized ops: integers q stand for (q - zero point) * scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compiler.onnx import model as models
from compiler.onnx.ops.pointwise import EIGHTHS, cast
from compiler.onnx.ops.row import Row, axis_of, row
from compiler.onnx.ops.window import conv


def _along(p: Tensor | None, x: Tensor, axis: int, block: int) -> Tensor | None:
    """Parameters per tensor, per axis or per block along an axis, shaped to broadcast to `x`."""
    if p is None or p.dim() == 0:
        return p
    if block:
        at = axis_of(axis, x.dim())
        return p.repeat_interleave(block, at).narrow(at, 0, x.shape[at])
    if p.numel() == 1:
        return p.reshape(())
    shape = [1] * x.dim()
    shape[axis] = -1
    return p.reshape(shape)


def _stored(value: Tensor, zero: Tensor | None, kind: torch.dtype) -> Tensor:
    """Round to the nearest integer, ties to even, and clamp to the type."""
    limits = torch.iinfo(kind)
    shifted = torch.round(value) if zero is None else torch.round(value) + zero.to(value.dtype)
    return torch.clamp(shifted, limits.min, limits.max).to(kind)


def _quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    saturate: int = 1,
) -> Tensor:  # fmt: skip
    kind = zero.dtype if zero is not None else models.dtype(output_dtype) if output_dtype else torch.uint8
    wide = x if x.is_floating_point() else x.float()
    by, around = _along(scale, x, axis, block_size), _along(zero, x, axis, block_size)
    assert by is not None
    if kind in EIGHTHS:
        apart = wide / by.to(wide.dtype)
        return cast(apart if around is None else apart + around.to(wide.dtype), kind, saturate)
    if not kind.is_floating_point:
        return _stored(wide / by.to(wide.dtype), around, kind)
    raise TypeError(f"{kind} is no integer")


def _dequantize(
    x: Tensor, scale: Tensor, zero: Tensor | None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
    by, around = _along(scale, x, axis, block_size), _along(zero, x, axis, block_size)
    assert by is not None
    exact = scale.dtype if x.is_floating_point() else torch.int32
    made = (x.to(exact) if around is None else x.to(exact) - around.to(exact)).to(scale.dtype) * by
    return made.to(models.dtype(output_dtype)) if output_dtype else made


def _shifted(x: Tensor, zero: Tensor | None, rows: bool) -> Tensor:
    """Integers minus the zero point; a vector of zero points is per row, or per column."""
    if zero is None:
        return x.to(torch.int32)
    around = zero.to(torch.int32)
    return x.to(torch.int32) - (around.unsqueeze(-1) if rows and around.dim() == 1 and around.numel() > 1 else around)


def _matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    return torch.matmul(_shifted(a, a_zero, True), _shifted(b, b_zero, False))


def _qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:  # fmt: skip
    product = torch.matmul(_shifted(a, a_zero, True), _shifted(b, b_zero, False))
    a_scale = a_scale.unsqueeze(-1) if a_scale.dim() == 1 and a_scale.numel() > 1 else a_scale  # one per row
    return _stored(product.float() * (a_scale.float() * b_scale.float() / y_scale.float()), y_zero, y_zero.dtype)


def _conv_integer(x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, **places: Any) -> Tensor:
    """Computed in f64, which represents all sums of products exactly."""
    around = None if w_zero is None else w_zero.reshape(-1, *[1] * (w.dim() - 1))
    return conv(_shifted(x, x_zero, False).double(), _shifted(w, around, False).double(), **places).to(torch.int32)


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
    made = _conv_integer(
        x, w, x_zero, w_zero, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
    )
    wide = [1, -1, *[1] * (made.dim() - 2)]
    made = made if bias is None else made + bias.reshape(wide)
    by = x_scale * w_scale / y_scale
    return _stored(made.float() * (by.reshape(wide) if by.numel() > 1 else by.reshape(())), y_zero, y_zero.dtype)


ROWS: dict[str, Row] = {
    "ConvInteger": row(_conv_integer_row), "DequantizeLinear": row(_dequantize), "MatMulInteger": row(_matmul_integer),
    "QLinearConv": row(_qlinear_conv), "QLinearMatMul": row(_qlinear_matmul), "QuantizeLinear": row(_quantize),
}  # fmt: skip
