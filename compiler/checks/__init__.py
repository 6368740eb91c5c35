"""What the compiler is checked by: trials of every instruction, planted miscompiles, the resources of kernels."""
