"""Building, loading and launching compiled text: takes source and launch geometry, never a program of an IR."""
