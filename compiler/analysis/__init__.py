"""Analyses of kernels, shared by passes and planners: memory access, loop nests, and what loops compute."""
