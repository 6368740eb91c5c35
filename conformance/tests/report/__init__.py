"""Tests of conformance/report."""
