"""From ONNX to Torch IR: each node runs the function of its op on traced tensors. Later stages know nothing of ONNX."""

from compiler.onnx.graph import from_onnx
from compiler.onnx.model import Model, read

__all__ = ["Model", "from_onnx", "read"]
