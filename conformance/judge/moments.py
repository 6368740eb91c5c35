"""Large products of f64 matrices in, what bounds must know of them out, computed by the GPU where that is quicker."""

from __future__ import annotations

import torch

import compiler
from conformance.judge.oracle import Array

LEAST = 1 << 26  # multiplications from which on a trip to the GPU pays


def on_gpu(x: Array, y: Array) -> compiler.Moments:
    """As `compiler.moments`."""
    if x.size * y.shape[-1] < LEAST:
        return compiler.moments(x, y)
    found = compiler.moments(_moved(x), _moved(y))
    parts = (found.total, found.absolute, found.squares, found.partial)
    return compiler.Moments(*(part.cpu().numpy() for part in parts))


def _moved(x: Array) -> torch.Tensor:
    return torch.from_numpy(x if x.flags.writeable else x.copy()).to("cuda" if torch.cuda.is_available() else "cpu")
