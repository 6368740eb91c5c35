"""Tests of conformance/judge."""
