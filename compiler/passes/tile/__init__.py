"""Tile IR to Tile IR: the steps of schedules."""
