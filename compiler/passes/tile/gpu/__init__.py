"""Schedule steps for GPUs: padding, tiles in shared memory and registers, split reductions."""
