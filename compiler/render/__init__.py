"""Kernel IR in, source text of the target language out."""
