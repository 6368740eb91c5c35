"""Tests of compiler/render."""
