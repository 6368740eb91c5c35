"""Whole training steps: losses compiled, in eager and in f64, and how long a step takes beside PyTorch's best."""
