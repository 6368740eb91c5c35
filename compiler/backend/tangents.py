"""Run compiled graphs on dual numbers (forward-mode differentiation) by PyTorch's own kernels, which know derivatives.

Forward mode neither traces a function nor marks tensors in a way that guards check, so each call looks for tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule

Boxed = Callable[[list[Any]], Sequence[Any]]


def dual_in_eager(run: Boxed, graph: GraphModule) -> Boxed:
    """Run `graph` in eager if an input has a tangent, else `run`."""

    def run_or_eager(inputs: list[Any]) -> Sequence[Any]:
        return graph.forward(*inputs) if has_tangent(inputs) else run(inputs)

    return run_or_eager


def has_tangent(inputs: Iterable[Any]) -> bool:
    """Whether an input is a dual number of the current level of differentiation."""
    if forward_ad._current_level < 0:
        return False
    unpack: Any = forward_ad.unpack_dual
    return any(isinstance(x, torch.Tensor) and unpack(x).tangent is not None for x in inputs)


def has_batch(inputs: Iterable[Any]) -> bool:
    """Whether an input is a batch of tensors under `vmap`, such as a backward pass gets for a batch of tangents.

    Launching a program refuses such inputs, so that only then they are looked for.
    """
    functorch: Any = torch._C._functorch
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    return any(functorch.is_batchedtensor(x) or functorch.is_legacy_batchedtensor(x) for x in tensors)
