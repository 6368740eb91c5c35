"""Tests of compiler/execution."""
