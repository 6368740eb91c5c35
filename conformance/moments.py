"""Large products of f64 matrices in, what bounds must know of them out, computed by the GPU where that is quicker."""

from __future__ import annotations

import torch

import compiler
from conformance.oracle import Array

LEAST = 1 << 26  # multiplications from which on a trip to the GPU pays


def on_gpu(x: Array, y: Array) -> compiler.Moments:
    """As `compiler.moments`."""
    if x.size * y.shape[-1] < LEAST:
        return compiler.moments(x, y)
    a, b = _moved(x), _moved(y)
    k = x.shape[-1]
    blocks = compiler.count_blocks(k)
    total = torch.zeros(1, dtype=a.dtype, device=a.device)
    partial = torch.zeros_like(total)
    for block in range(blocks):
        part = slice(block * k // blocks, (block + 1) * k // blocks)
        total = total + a[..., part] @ b[..., part, :]
        partial = partial + total**2 / blocks
    found = (total, a.abs() @ b.abs(), (a * a) @ (b * b), partial)
    return compiler.Moments(*(tensor.cpu().numpy() for tensor in found))


def _moved(x: Array) -> torch.Tensor:
    return torch.from_numpy(x if x.flags.writeable else x.copy()).to("cuda" if torch.cuda.is_available() else "cpu")
