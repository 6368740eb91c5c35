"""Tests of compiler/interpret."""
