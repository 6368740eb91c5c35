"""A compiled graph in; the same for dual numbers as well out, whose tangents no kernel of ours carries along.

Forward-mode differentiation neither traces a function nor marks a tensor in a way that a compiled graph is guarded by.
Calls with tangents among the inputs are made by PyTorch's own kernels, which know their derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule

Boxed = Callable[[list[Any]], Sequence[Any]]


def carried(run: Boxed, graph: GraphModule) -> Boxed:
    """What runs `graph` by itself where there are tangents, and elsewhere as compiled."""

    def carry(inputs: list[Any]) -> Sequence[Any]:
        return graph.forward(*inputs) if found(inputs) else run(inputs)

    return carry


def found(inputs: Iterable[Any]) -> bool:
    """Whether a tensor among the inputs is a dual number of the level that is being differentiated."""
    if forward_ad._current_level < 0:
        return False
    parts: Any = forward_ad.unpack_dual
    return any(isinstance(x, torch.Tensor) and parts(x).tangent is not None for x in inputs)
