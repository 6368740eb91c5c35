"""Save indices for the backward graph in as few bits as they need, on GPUs: a pool has 8 bytes for 2 of a maximum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.backend.saved_rows import is_view
from compiler.frontend import graphs
from compiler.frontend.graphs import memory_of

_aten = torch.ops.aten
_KINDS = {1 << 8: torch.uint8, 1 << 15: torch.int16, 1 << 31: torch.int32}  # by how many numbers from 0 on they hold


def _places(axes: int) -> Callable[..., int]:
    return lambda x, *_: math.prod(x.shape[-axes:])


def _length(x: Tensor, axis: int = -1, *_: Any) -> int:
    return x.shape[axis] if x.dim() else 1


# Calls whose second result are indices -> the number of values that these take, from the arguments of the call.
_COUNTS: Mapping[object, Callable[..., int]] = {
    _aten.max_pool2d_with_indices.default: _places(2), _aten.max_pool3d_with_indices.default: _places(3),
    _aten.adaptive_max_pool2d.default: _places(2), _aten.adaptive_max_pool3d.default: _places(3),
    _aten.max.dim: _length, _aten.min.dim: _length, _aten.sort.default: _length,
    _aten.topk.default: lambda x, k, axis=-1, *_: _length(x, axis),
}  # fmt: skip


def save_narrow_indices(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Narrow saved indices at the end of `forward` and widen them at the start of `backward`.

    The first `results` outputs of `forward` are visible outside and stay as they are, as do values saved twice.
    """
    output = graphs.output(forward)
    outputs = list(output.args[0])
    readers = graphs.placeholders_by_name(backward)
    memories = [memory_of(n) for n in outputs]
    for k, node in enumerate(outputs[results:], results):
        kind = _narrow_kind(node) if isinstance(node, Node) and memories.count(memory_of(node)) == 1 else None
        if kind is None or node.name not in readers:
            continue
        reader = readers[node.name]
        with forward.graph.inserting_before(output):
            outputs[k] = _converted(node, kind)
        with backward.graph.inserting_after([*graphs.placeholders(backward)][-1]):
            widened = _converted(reader, torch.int64)
        reader.replace_all_uses_with(widened)
        widened.args = (reader,)
        reader.meta = {**reader.meta, "val": outputs[k].meta["val"]}
        reader.meta.pop("tensor_meta", None)
    output.args = (tuple(outputs),)
    forward.recompile()
    backward.recompile()


def _narrow_kind(node: Node) -> torch.dtype | None:
    """The narrowest type for a saved value, if it is the indices of a call in the table, or a view of them."""
    x = node.meta.get("val")
    while is_view(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    if node.target is not getitem or node.args[1] != 1 or not isinstance(x, Tensor) or x.dtype is not torch.int64:
        return None
    call = node.args[0]
    assert isinstance(call, Node)
    count = _COUNTS.get(call.target)
    if count is None or call.kwargs or not all(isinstance(n, int) for n in (*x.shape, *x.stride())):
        return None
    values = [a.meta["val"] if isinstance(a, Node) else a for a in call.args]
    most = count(*values)
    return next((kind for held, kind in _KINDS.items() if isinstance(most, int) and most <= held), None)


def _converted(node: Node, kind: torch.dtype) -> Node:
    """A value in another type with the same strides, inserted where the graph is about to insert."""
    made = node.graph.call_function(_aten._to_copy.default, (node,), {"dtype": kind})
    x = node.meta["val"]
    with x.fake_mode:
        made.meta = {"val": torch.empty_strided(x.shape, x.stride(), dtype=kind, device=x.device)}
    return made
