"""ONNX ops in terms of torch: one row per op."""

from compiler.onnx.ops import control, index, pointwise, quantize, recurrent, reduce, sample, shape, window
from compiler.onnx.ops.row import Row

ROWS: dict[str, Row] = {
    **pointwise.ROWS, **shape.ROWS, **reduce.ROWS, **index.ROWS, **window.ROWS, **control.ROWS, **quantize.ROWS,
    **recurrent.ROWS, **sample.ROWS,
}  # fmt: skip

__all__ = ["ROWS", "Row"]
