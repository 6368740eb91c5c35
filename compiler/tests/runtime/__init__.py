"""Tests of compiler/runtime."""
