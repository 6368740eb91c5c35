"""Tests of compiler/passes/gpu."""
