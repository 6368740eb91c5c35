"""Tests of compiler/backend."""
