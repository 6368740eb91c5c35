"""Targets as data: features, limits, instructions and costs of each machine."""
