"""Shape files: the format, what it expands to, and the data of a case."""
