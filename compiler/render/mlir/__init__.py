"""Tensor IR as MLIR text: `linalg`, which covers all of it, and `tosa`, as far as TOSA has operations."""
