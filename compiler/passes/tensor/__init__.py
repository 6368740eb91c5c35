"""Tensor IR to Tensor IR: views disappear into the index of whoever reads them, and equations are grouped into kernels."""
