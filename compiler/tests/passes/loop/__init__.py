"""Tests of compiler/passes/loop."""
