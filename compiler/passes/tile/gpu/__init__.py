"""Schedule steps for targets with threads: full tiles, factors in shared memory and in registers, sums in parts."""
