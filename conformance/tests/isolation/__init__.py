"""Tests of conformance/isolation."""
