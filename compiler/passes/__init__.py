"""How programs change: each pass takes a program and returns one for which its invariant holds."""
