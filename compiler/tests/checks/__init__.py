"""Tests of compiler/checks."""
