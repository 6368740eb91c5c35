"""Tests of what is written for Triton."""
