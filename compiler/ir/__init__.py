"""Intermediate representations: nodes, types, expressions, their text, and the statements of each stage."""
