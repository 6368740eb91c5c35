"""Torch IR to Tensor IR: `lower` and the `RULES` by which it does it, one module for each family of ops."""

from compiler.passes.torch_to_tensor.lower import RULES, lower

__all__ = ["RULES", "lower"]
