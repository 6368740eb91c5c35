"""Reference semantics: an evaluator for each IR, from input arrays to output arrays."""
