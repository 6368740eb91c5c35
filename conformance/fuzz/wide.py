"""Eager code in f64: within `Wide`, every call that asks for a floating type gets f64, whatever it says.

Tensors that go in are made f64 by `widened`, with the strides, gaps and offset that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.shapes.inputs import clone_storage

FLOATING = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


class Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Types that calls ask for, made f64 if they are floating."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map(_wider, (args, kwargs or {}))
        return func(*args, **kwargs)


def _wider(x: object) -> object:
    return torch.float64 if isinstance(x, torch.dtype) and x in FLOATING else x


@contextmanager
def in_f64() -> Iterator[None]:
    """What runs within is computed in f64, given `widened` tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Wide():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)


def widened(x: Tensor) -> Tensor:
    """A copy of the storage, in f64 where it is floating."""
    return clone_storage(x.detach(), dtype=torch.float64) if x.is_floating_point() else clone_storage(x)
