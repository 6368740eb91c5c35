"""From ONNX to Torch IR: each node runs as the row of its op, on tensors that are traced; nothing later knows of it."""

from compiler.onnx.graph import from_onnx
from compiler.onnx.model import Model, read

__all__ = ["Model", "from_onnx", "read"]
