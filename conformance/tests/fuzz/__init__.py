"""Tests of conformance/fuzz."""
