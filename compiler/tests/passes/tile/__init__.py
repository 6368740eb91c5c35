"""Tests of compiler/passes/tile."""
