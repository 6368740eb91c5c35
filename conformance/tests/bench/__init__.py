"""Tests of conformance/bench."""
