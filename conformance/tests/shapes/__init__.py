"""Tests of conformance/shapes."""
