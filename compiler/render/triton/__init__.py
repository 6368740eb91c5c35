"""Scheduled Tile IR as Triton kernels."""
