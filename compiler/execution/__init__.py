"""A program as something that runs: one stage by its own executor, or compiled; its buffers, sizes and results."""
