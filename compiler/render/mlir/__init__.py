"""Tensor IR as text of MLIR: `linalg`, which has all of it, and `tosa`, which has what TOSA has an operation for."""
