"""Passes on Loop IR."""
