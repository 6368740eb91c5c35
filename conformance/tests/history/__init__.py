"""Tests of conformance/history."""
