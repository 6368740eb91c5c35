"""Shape files: their format, their expansion to cases, and the data of a case."""
