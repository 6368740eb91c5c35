"""Tests of compiler/cli."""
