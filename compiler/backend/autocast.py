"""Backward passes outside of autocast, where torch recommends them to run: no product in them is rounded for it.

AOTAutograd traces a backward pass along with its forward pass, and under the same autocast, which would round operands
of matmuls that forward reads unrounded: in gradients of inverses, for one, and of regions that turn autocast off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch
from torch.fx import GraphModule, Node

Function = Callable[..., Any]
# What autocast makes the operands of of one type, which torch traces whatever these are.
_PRODUCTS = {"addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "convolution", "dot", "linear", "mm", "mv"}


class _Mixed(RuntimeError):
    """Operands of a product are of several types."""


def off_in_backward(trace: Function, partition: Function) -> Function:
    """What `trace` gives with a partition of graphs, where a backward pass that it traces is outside of autocast.

    Some that users write exist only within it, which makes types of operands one: these are traced as forward is.
    """
    if not torch._C._is_any_autocast_enabled():
        return trace(partition_fn=partition)  # type: ignore[no-any-return]
    try:
        with functorch.patch(backward_pass_autocast="off"):
            return trace(partition_fn=functools.partial(_of_one_type, partition))  # type: ignore[no-any-return]
    except RuntimeError:
        return trace(partition_fn=partition)  # type: ignore[no-any-return]


def _of_one_type(partition: Function, joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
    if any(map(_is_mixed, joint.graph.nodes)):
        raise _Mixed
    return partition(joint, *args, **kwargs)


def _is_mixed(node: Node) -> bool:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = {x.dtype for x in values if isinstance(x, torch.Tensor)}
    return len(types) > 1 and getattr(getattr(node.target, "overloadpacket", None), "__name__", "") in _PRODUCTS
