"""Tile IR to Tile IR: schedule steps."""
