"""Benchmarks: races of cases against rivals and stored kernels, and the measured limits of the machine."""
