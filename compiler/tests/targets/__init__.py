"""Tests of compiler/targets."""
