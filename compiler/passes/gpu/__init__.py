"""Tile IR to Kernel IR for GPUs."""
