"""A graph in; the same graph out, in which checks of what a factorisation says of its success are plain assertions."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._higher_order_ops.effects import with_effects
from torch.fx import Graph, GraphModule, Node

_aten = torch.ops.aten


def with_assertions(graph: GraphModule) -> GraphModule:
    """The graph, changed where AOTAutograd orders such checks by tokens, which nothing else reads."""
    for node in list(graph.graph.nodes):
        if node.target is with_effects and node.args[1] is _aten._linalg_check_errors.default:
            token, _, info, name = node.args[:4]
            token.meta["val"] = None  # which it is as the graph runs, though torch says that it is an empty tensor
            with graph.graph.inserting_before(node):
                each = _called(graph.graph, _aten.eq.Scalar, info, 0)
                every = _called(graph.graph, _aten.all.default, each)
                said = f"{name}: a matrix is singular, or not positive definite"
                graph.graph.call_function(_aten._assert_async.msg, (every, said))
            for part in list(node.users):
                if part.target is operator.getitem and part.args[1] == 0:
                    part.replace_all_uses_with(token)
                graph.graph.erase_node(part)
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _called(graph: Graph, op: Any, of: Node, *rest: Any) -> Node:
    made = graph.call_function(op, (of, *rest))
    value = of.meta["val"]
    with value.fake_mode:
        made.meta["val"] = op(value, *rest)
    return made
