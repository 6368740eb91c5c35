"""Torch IR to Tensor IR: `lower.lower`, with one module of rules per family of ops (`lower.RULES` has all of them)."""
