"""Checks of the compiler: trials of every instruction, planted miscompiles, the resources of kernels."""
