"""Tile IR to Kernel IR for CPUs."""
