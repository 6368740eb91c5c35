"""Scheduled Tile IR as kernels of Triton."""
