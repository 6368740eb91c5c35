"""Tests of the text of MLIR."""
