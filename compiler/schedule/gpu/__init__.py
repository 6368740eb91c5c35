"""Matmuls and convolutions on GPUs: axes, tiles and copies that planners of `compiler/schedule/space/gpu` share."""
