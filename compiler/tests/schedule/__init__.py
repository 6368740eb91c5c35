"""Tests of compiler/schedule."""
