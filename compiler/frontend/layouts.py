"""Orders of axes in memory: those that the results of an op have, and tensors copied to them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

Layout = tuple[list[int], list[int]]  # sizes and strides of a tensor


def layout_of(x: torch.Tensor) -> Layout:
    """Sizes and strides; if they are symbolic, those of the example, so that no guard is added."""
    return [*map(hint_of, x.shape)], [*map(hint_of, x.stride())]


def hint_of(n: Any) -> Any:
    return n.node.hint if isinstance(n, torch.SymInt | torch.SymFloat | torch.SymBool) else n


def op_layouts(op: Any, args: Any, kwargs: Any) -> list[Layout | None]:
    """Sizes and strides of the op's results, from its meta kernel on that device; empty if torch cannot tell."""

    def empty(x: Any) -> Any:
        return (
            torch.empty_strided(*layout_of(x), dtype=x.dtype, device=x.device)
            if isinstance(x, torch.Tensor)
            else hint_of(x)
        )

    with _disable_current_modes(), FakeTensorMode():
        try:
            outputs = op(*pytree.tree_map(empty, args), **pytree.tree_map(empty, kwargs))
        except (RuntimeError, TypeError):  # no kernel for this, or a size that has no example
            return []
        return [layout_of(x) if isinstance(x, torch.Tensor) else None for x in pytree.tree_leaves(outputs)]


def to_layout(x: Any, layout: Layout | None) -> Any:
    """Copy a tensor to the promised order of axes in memory, at storage offset 0, unless it is stored so already."""
    if not isinstance(x, torch.Tensor) or layout is None or len(layout[0]) != x.dim():
        return x
    sizes, strides = layout
    order = sorted(range(x.dim()), key=lambda axis: -strides[axis])
    is_dense = math.prod(sizes) > 0 and _is_dense(sizes, strides, order)
    if not is_dense or (hint_of(x.storage_offset()) == 0 and _is_dense(*layout_of(x), order)):
        return x
    inverse = [order.index(axis) for axis in range(x.dim())]
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def with_layout_of(x: Any, like: Any) -> Any:
    """The tensor with the order of axes in memory that `like` has."""
    return to_layout(x, layout_of(like)) if isinstance(like, torch.Tensor) else x


def ensure_layout(x: Any, layout: Layout | None) -> Any:
    return x if layout is None or layout_of(x) == layout else to_layout(x, layout)


def _is_dense(sizes: list[int], strides: list[int], order: list[int]) -> bool:
    """Whether a tensor is dense with its axes in this order."""
    expected = 1
    for axis in reversed(order):
        if sizes[axis] > 1 and strides[axis] != expected:
            return False
        expected *= sizes[axis]
    return True
