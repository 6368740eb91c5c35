"""Detect infinite operands of f32 contractions: computed as three tf32 products, these give NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from conformance.fuzz import runs
from conformance.fuzz.program import Program, call_arguments, function, gradient_flags

aten = torch.ops.aten
CONTRACTIONS = {*flop_registry, aten.addbmm, aten._trilinear, aten.mkldnn_rnn_layer}


class _InfinityWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sets `found` if an operand of a contraction contains an infinity."""

    found = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in CONTRACTIONS:
            self.found |= any(map(_is_infinite, pytree.tree_leaves((args, kwargs))))
        return func(*args, **(kwargs or {}))


def _is_infinite(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype is torch.float32 and bool(torch.isinf(x).any())


def has_infinite_operands(program: Program) -> bool:
    """Return whether any f32 contraction of the program, forward or backward, has an infinite operand at any size."""
    call: Callable[..., Any] = function(program)
    with _InfinityWatch() as watching:  # type: ignore[no-untyped-call]
        for point in program.points:
            runs.call(call, runs.copy_arguments(call_arguments(program, point)), gradient_flags(program))
    return bool(watching.found)
