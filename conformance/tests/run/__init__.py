"""Tests of conformance/run."""
