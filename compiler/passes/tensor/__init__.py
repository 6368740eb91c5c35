"""Tensor IR to Tensor IR: views disappear into the indices of their readers, equations are grouped into kernels."""
