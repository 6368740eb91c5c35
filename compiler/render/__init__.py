"""Render IR as source text of the target language."""
