"""The ends of a graph of torch.fx."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node


def placeholders(graph: GraphModule) -> list[Node]:
    """What the graph takes, in order."""
    return [n for n in graph.graph.nodes if n.op == "placeholder"]


def output(graph: GraphModule) -> Any:  # a Node, of whose arguments torch's type says less than is known here
    """The node whose first argument is what the graph returns."""
    return graph.graph.output_node()
