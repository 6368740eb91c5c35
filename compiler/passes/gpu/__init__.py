"""Tile IR to Kernel IR for machines with threads."""
