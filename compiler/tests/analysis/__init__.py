"""Tests of what is known of programs."""
