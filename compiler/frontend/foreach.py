"""Decompose ops over lists of tensors (`_foreach_*`) into the corresponding op for each element.

An argument that is not a list applies to all elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_PREFIX = "aten::_foreach_"


def _with_tensor_value(
    fused: Callable[..., Tensor], product: Callable[[Tensor, Tensor], Tensor]
) -> Callable[..., Tensor]:
    """`addcmul` or `addcdiv`, whose `value` may be a tensor when applied to lists."""

    def element(x: Tensor, y: Tensor, z: Tensor, value: Any = 1) -> Tensor:
        return x + value * product(y, z) if isinstance(value, Tensor) else fused(x, y, z, value=value)

    return element


# Ops whose single-tensor form, or its overload for numbers, has another name or signature.
_SINGLE_FORMS: dict[str, Callable[..., Any]] = {
    "maximum": lambda x, y: _aten.maximum(x, y) if isinstance(y, Tensor) else _aten.clamp_min(x, y),
    "minimum": lambda x, y: _aten.minimum(x, y) if isinstance(y, Tensor) else _aten.clamp_max(x, y),
    "norm": lambda x, ord=2, dtype=None: _aten.linalg_vector_norm(x, ord, dtype=dtype),
    "addcmul": _with_tensor_value(_aten.addcmul, torch.mul),
    "addcdiv": _with_tensor_value(_aten.addcdiv, torch.div),
    "copy": lambda x, y, non_blocking=False: _aten.copy(x, y),
    "zero": torch.zeros_like,
}


def list_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition for each list op that changes none of its arguments."""
    names = [n.removeprefix(_PREFIX) for n in torch._C._dispatch_get_all_op_names() if n.startswith(_PREFIX)]
    table: dict[Any, Callable[..., Any]] = {}
    for name, _, overload in (n.partition(".") for n in names):
        op = getattr(getattr(_aten, f"_foreach_{name}"), overload or "default")
        element_op = _SINGLE_FORMS.get(name) or getattr(_aten, name, None)
        if element_op is not None and not op._schema.is_mutable:
            table[op] = _apply_to_elements(element_op)
    return table


def _apply_to_elements(element_op: Callable[..., Any]) -> Callable[..., list[Any]]:
    def run(*args: Any, **kwargs: Any) -> list[Any]:
        count = next(len(a) for a in args if isinstance(a, list | tuple))

        def element_of(a: Any, k: int) -> Any:
            # A list of numbers may be given as a tensor.
            return a[k] if isinstance(a, list | tuple) or (isinstance(a, Tensor) and a.dim()) else a

        return [
            element_op(*(element_of(a, k) for a in args), **{n: element_of(a, k) for n, a in kwargs.items()})
            for k in range(count)
        ]

    return run
