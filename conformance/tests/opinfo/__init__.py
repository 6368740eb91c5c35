"""Tests of conformance/opinfo."""
