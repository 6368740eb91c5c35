"""Whole models without gradients, compiled by us and by PyTorch's ways: results, compile times and races."""
