"""Inputs, outputs and side effects of torch.fx graphs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node, map_arg

# Ops that update running statistics without saying so in their schemas, and the argument that enables the update.
_STATISTICS = {
    "aten.batch_norm.default": "training", "aten.instance_norm.default": "use_input_stats",
    "aten.batch_norm_update_stats.default": "", "aten.batch_norm_gather_stats.default": "",
    "aten.batch_norm_gather_stats_with_counts.default": "", "aten.cudnn_batch_norm.default": "training",
    "aten.miopen_batch_norm.default": "training", "aten.native_batch_norm.default": "training",
    "aten._batch_norm_impl_index.default": "training",
}  # fmt: skip


def placeholders(graph: GraphModule) -> list[Node]:
    """The inputs of the graph, in order."""
    return [n for n in graph.graph.nodes if n.op == "placeholder"]


def placeholders_by_name(graph: GraphModule) -> dict[str, Node]:
    """The inputs of the graph by name: those of a backward graph have the names of what the forward graph saves."""
    return {n.name: n for n in placeholders(graph)}


def output(graph: GraphModule) -> Any:  # a Node, but torch's type of its arguments is too general
    """The node whose first argument is what the graph returns."""
    return graph.graph.output_node()


def fake_mode_of(nodes: Iterable[Node]) -> FakeTensorMode | None:
    """The mode in which the values of these nodes were made up; None if none of them is a tensor."""
    return next((v.fake_mode for n in nodes if isinstance(v := n.meta.get("val"), FakeTensor)), None)


def refresh_views(graph: GraphModule) -> None:
    """Let the fake values of views share memory with those that they are views of.

    They do not after a node was replaced by one with the same value: its views still have its memory.
    """
    for node in graph.graph.nodes:
        is_view = isinstance(node.target, OpOverload) and node.target.is_view
        if not (is_view or node.target is operator.getitem) or not node.all_input_nodes:
            continue
        source, old = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
        sources, views = ([x for x in tensors_in(v) if x.layout is torch.strided] for v in (source, old))
        if not sources or not views or {_memory(x) for x in sources} >= {_memory(x) for x in views}:
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with sources[0].fake_mode:
            node.meta = {**node.meta, "val": node.target(*args, **kwargs)}


def tensors_in(value: Any) -> list[Any]:
    """The tensors among the values of a node, which may be one or several."""
    return [x for x in (value if isinstance(value, tuple | list) else [value]) if isinstance(x, torch.Tensor)]


def memory_of(node: object) -> object:
    """A key that is equal for nodes whose values share memory; the node itself if its value has no strides."""
    x = node.meta.get("val") if isinstance(node, Node) else None
    return _memory(x) if isinstance(x, torch.Tensor) and x.layout is torch.strided else node


def _memory(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def mutates(node: Node) -> bool:
    """Whether a call changes one of its arguments."""
    op = node.target
    if not isinstance(op, OpOverload):
        return False
    if op._schema.is_mutable or str(op) not in _STATISTICS:
        return op._schema.is_mutable
    arguments = dict(zip((a.name for a in op._schema.arguments), node.args, strict=False)) | node.kwargs
    has_statistics = arguments.get("running_mean") is not None or arguments.get("running_var") is not None
    return has_statistics and bool(arguments.get(_STATISTICS[str(op)], True))
