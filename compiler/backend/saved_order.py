"""Save tensors for the backward graph in row-major order if a norm or a softmax there reads their rows.

A saved tensor has eager's strides, which may be transposed because one operand of a sum was. Only the two graphs see
it, so its order is free.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.backend.saved_rows import depends_on_strides, uses
from compiler.frontend import graphs
from compiler.frontend.graphs import memory_of

_aten = torch.ops.aten
# Calls that reduce over the last axis of their arguments.
_ROW_REDUCTIONS = frozenset({
    _aten.native_layer_norm.default, _aten.native_layer_norm_backward.default, _aten._fused_rms_norm.default,
    _aten._fused_rms_norm_backward.default,
})  # fmt: skip
_AXIS_REDUCTIONS = frozenset({_aten._softmax.default, _aten._log_softmax.default, _aten._softmax_backward_data.default})
MOST_CALLS = 3  # elementwise ones between a saved tensor and a reduction


def make_rows_contiguous(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Save tensors in row-major order if a norm or softmax reduces their rows. Changes both graphs.

    The first `results` outputs of `forward` are visible outside and stay as they are.
    """
    output = graphs.output(forward)
    outputs = list(output.args[0])
    readers = graphs.placeholders_by_name(backward)
    memories = [memory_of(n) for n in graphs.placeholders(forward)]
    memories += [memory_of(n) for n in outputs]
    for k, node in enumerate(outputs[results:], results):
        reader = readers.get(node.name) if isinstance(node, Node) else None
        if reader is None or memories.count(memory_of(node)) > 1 or not _is_transposed(node):
            continue
        reads = [*uses(node), *uses(reader)]
        if any(_reduces_rows(user, x) for user, x in reads) and not any(depends_on_strides(user) for user, _ in reads):
            outputs[k] = _row_major_copy(node, output)
            reader.meta = {**reader.meta, "val": outputs[k].meta["val"]}
            reader.meta.pop("tensor_meta", None)
    output.args = (tuple(outputs),)
    forward.recompile()


def _is_transposed(node: Node) -> bool:
    """Whether a tensor is dense and its last axis is not the contiguous one."""
    x = node.meta.get("val")
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.dim() < 2:
        return False
    sizes = (*x.shape, *x.stride())
    if not all(isinstance(n, int) for n in sizes) or x.stride(-1) == 1 or x.shape[-1] == 1:
        return False
    steps = sorted((step, n) for n, step in zip(x.shape, x.stride(), strict=True) if n != 1)
    return all(step == math.prod(n for _, n in steps[:k]) for k, (step, _) in enumerate(steps))


def _reduces_rows(user: Node, x: Node, depth: int = MOST_CALLS) -> bool:
    """Whether a call, or one that reads what it computes elementwise, reduces over the last axis of a value."""
    value, made = x.meta["val"], user.meta.get("val")
    if user.target in _ROW_REDUCTIONS:
        return True
    if user.target in _AXIS_REDUCTIONS:
        return value.dim() - 1 in {a % value.dim() for a in user.args if type(a) is int}
    is_elementwise = user.target is _aten._to_copy.default or torch.Tag.pointwise in getattr(user.target, "tags", ())
    if not depth or not is_elementwise or not isinstance(made, Tensor) or made.shape != value.shape:
        return False
    return any(_reduces_rows(n, read, depth - 1) for n, read in uses(user))


def _row_major_copy(node: Node, before: Node) -> Node:
    """A row-major copy of a value, inserted before a node."""
    graph = node.graph
    with graph.inserting_before(before):
        made = graph.call_function(_aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    x = node.meta["val"]
    with x.fake_mode:
        made.meta = {"val": x.clone(memory_format=torch.contiguous_format)}
    return made
