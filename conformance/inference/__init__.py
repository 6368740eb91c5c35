"""Inference of whole models, compiled by mlcomp and by PyTorch: results, compile times and races."""
