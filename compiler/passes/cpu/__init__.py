"""Tile IR to Kernel IR for processors."""
