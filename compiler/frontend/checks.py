"""Simplify two kinds of auxiliary calls in graphs: checks of factorisations, and outputs of attention for dropout.

A check that a factorisation succeeded becomes a plain assertion. Without dropout, the outputs of attention that only
dropout needs (generator state, debug mask) and those that repeat lengths become constants and sizes. Forward graphs
return them because backward graphs take them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._higher_order_ops.effects import with_effects
from torch.fx import Graph, GraphModule, Node
from torch.fx.operator_schemas import normalize_function

_aten = torch.ops.aten
SINGULAR = "a matrix is singular or not positive definite"  # part of the message of these assertions only


def with_assertions(graph: GraphModule) -> GraphModule:
    """Replace checks that AOTAutograd orders by effect tokens, which nothing else reads. Changes the graph in place."""
    for node in list(graph.graph.nodes):
        if node.target is with_effects and node.args[1] is _aten._linalg_check_errors.default:
            token, _, info, name = node.args[:4]
            token.meta["val"] = None  # its value at run time, although torch reports an empty tensor
            with graph.graph.inserting_before(node):
                each = _called(graph.graph, _aten.eq.Scalar, info, 0)
                every = _called(graph.graph, _aten.all.default, each)
                said = f"{name}: {SINGULAR}"
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


# Results 2 and up serve dropout only, or repeat sizes of the arguments.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
}


def without_dropout(graph: GraphModule) -> GraphModule:
    """Replace those results of attention calls without dropout. Changes the graph in place."""
    held: dict[str, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in _ATTENTION and not _dropout(node):
            for part in [n for n in node.users if n.target is operator.getitem and n.args[1] >= 2]:
                value = part.meta.get("val")
                new = _tensor(graph, value, held) if isinstance(value, torch.Tensor) else value
                if isinstance(value, torch.SymInt):
                    with graph.graph.inserting_before(part):
                        new = graph.graph.call_function(torch.ops.aten.sym_size.int, (node.args[part.args[1] - 4], 2))
                    new.meta["val"] = value
                _replaced(graph.graph, part, new)
    graph.recompile()
    return graph


def _dropout(node: Node) -> Any:
    normal = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)  # type: ignore[arg-type]
    return normal is None or normal.kwargs.get("dropout_p", 0.0)


def _tensor(graph: GraphModule, like: torch.Tensor, held: dict[str, Node]) -> Node:
    """Zeros of the type and shape of `like`, held by the graph once for each."""
    key = f"no_dropout_{str(like.dtype).removeprefix('torch.')}_{'_'.join(map(str, like.shape))}"
    if key not in held:
        graph.register_buffer(key, torch.zeros([int(n) for n in like.shape], dtype=like.dtype, device=like.device))
        with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
            held[key] = graph.graph.get_attr(key)
        held[key].meta["val"] = like
    return held[key]


def _replaced(graph: Graph, part: Node, new: Any) -> None:
    for user in list(part.users):
        user.args, user.kwargs = torch.fx.node.map_arg((user.args, user.kwargs), lambda n: new if n is part else n)
    graph.erase_node(part)
