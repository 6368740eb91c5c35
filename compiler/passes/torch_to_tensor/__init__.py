"""Torch IR to Tensor IR: `lower.lower`, by rules in one module for each family of ops (`lower.RULES` has them all)."""
