"""Tests of compiler/passes/tensor."""
