"""Tests of compiler/passes/torch_to_tensor."""
