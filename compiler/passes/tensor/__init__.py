"""Tensor IR to Tensor IR: views are folded into the indices of their readers; equations are grouped into kernels."""
