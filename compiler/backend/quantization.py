"""Find the parameters among the inputs of graphs, and quantize their products.

Dynamo passes parameters as graph inputs, among the others. Each is marked with its value, and so are its views, since
regions of a graph may begin between a parameter and its view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from compiler import frontend
from compiler.errors import CompilerError
from compiler.frontend.graphs import placeholders

_VALUE = "mlcomp_parameter"


def mark_parameters(graph: GraphModule, inputs: Sequence[Any], trains: bool) -> None:
    """Mark the nodes of a graph that are parameters, by `inputs`, the values that the call was compiled for."""
    if trains:
        raise CompilerError("quantize is for inference only: call the model under torch.no_grad()")
    nodes = placeholders(graph)
    if len(nodes) != len(inputs):
        raise CompilerError("quantize cannot identify parameters if inputs share memory")
    for node, value in zip(nodes, inputs, strict=True):
        if isinstance(value, torch.nn.Parameter):
            node.meta[_VALUE] = value.detach()
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "is_view", False):
            _mark_view(node)


def _mark_view(node: Node) -> None:
    """Mark a view of a marked node whose other arguments are constants; others stay unmarked."""
    first, *rest = node.args
    if isinstance(first, Node) and _VALUE in first.meta and not any(isinstance(x, Node) for x in rest):
        with unset_fake_temporarily():
            node.meta[_VALUE] = node.target(first.meta[_VALUE], *rest, **node.kwargs)  # type: ignore[operator]


def copy_marks(source: GraphModule, graph: GraphModule) -> None:
    """Copy the marks of a graph to one with the same inputs that was traced anew."""
    for old, new in zip(placeholders(source), placeholders(graph), strict=False):
        if _VALUE in old.meta:
            new.meta[_VALUE] = old.meta[_VALUE]


def quantized(
    captured: frontend.Captured, graph: GraphModule, mode: str | None
) -> tuple[frontend.Captured, frozenset[str]]:
    """The program of a graph with its parameters quantized, and the names of the placeholders that it still takes."""
    inputs = placeholders(graph)
    tensors = [inputs[k] for k in captured.positions]
    if mode is not None:
        pairs = list(zip(captured.arguments, tensors, strict=True))
        weights = {name: n.meta[_VALUE] for name, n in pairs if _VALUE in n.meta}
        captured = frontend.quantized(captured, mode, weights)
        tensors = [n for name, n in pairs if name in captured.arguments]
    return captured, frozenset(n.name for n in tensors)
