"""What each ONNX op is in calls of torch: a row an op."""

from compiler.onnx.ops import contract, pointwise
from compiler.onnx.ops.row import Row

ROWS: dict[str, Row] = {**pointwise.ROWS, **contract.ROWS}

__all__ = ["ROWS", "Row"]
