"""Trace backward passes outside of autocast, as torch recommends to run them, so that their products are not rounded.

AOTAutograd traces a backward pass along with its forward pass, under the same autocast. That would round operands of
matmuls that the forward pass reads unrounded, for instance in gradients of inverses and of regions that turn autocast
off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch
from torch.fx import GraphModule, Node

Function = Callable[..., Any]
# Ops whose operands autocast converts to one type; torch traces them even if their operands have several types.
_PRODUCTS = {"addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "convolution", "dot", "linear", "mm", "mv"}


class _MixedTypes(RuntimeError):
    """A product has operands of several types."""


def disable_in_backward(trace: Function, partition: Function) -> Function:
    """Call `trace(partition_fn=...)` with autocast off in the backward pass.

    A user's backward pass may need autocast to bring the operands of a product to one type. It is then traced under
    autocast, like the forward pass.
    """
    if not torch._C._is_any_autocast_enabled():
        return trace(partition_fn=partition)  # type: ignore[no-any-return]
    try:
        with functorch.patch(backward_pass_autocast="off"):
            return trace(partition_fn=functools.partial(_partition_if_unmixed, partition))  # type: ignore[no-any-return]
    except RuntimeError:
        return trace(partition_fn=partition)  # type: ignore[no-any-return]


def _partition_if_unmixed(partition: Function, joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
    if any(map(_is_mixed, joint.graph.nodes)):
        raise _MixedTypes
    return partition(joint, *args, **kwargs)


def _is_mixed(node: Node) -> bool:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = {x.dtype for x in values if isinstance(x, torch.Tensor)}
    return len(types) > 1 and getattr(getattr(node.target, "overloadpacket", None), "__name__", "") in _PRODUCTS
