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
                is_zero = _insert_call(graph.graph, _aten.eq.Scalar, info, 0)
                succeeded = _insert_call(graph.graph, _aten.all.default, is_zero)
                message = f"{name}: {SINGULAR}"
                graph.graph.call_function(_aten._assert_async.msg, (succeeded, message))
            for result in list(node.users):
                if result.target is operator.getitem and result.args[1] == 0:
                    result.replace_all_uses_with(token)
                graph.graph.erase_node(result)
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _insert_call(graph: Graph, op: Any, operand: Node, *arguments: Any) -> Node:
    node = graph.call_function(op, (operand, *arguments))
    value = operand.meta["val"]
    with value.fake_mode:
        node.meta["val"] = op(value, *arguments)
    return node


# Results 2 and up serve dropout only, or repeat sizes of the arguments.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
}


def without_dropout(graph: GraphModule) -> GraphModule:
    """Replace those results of attention calls without dropout. Changes the graph in place."""
    constants: dict[str, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in _ATTENTION and not _dropout_probability(node):
            for result in [n for n in node.users if n.target is operator.getitem and n.args[1] >= 2]:
                value = result.meta.get("val")
                replacement = _zeros_like(graph, value, constants) if isinstance(value, torch.Tensor) else value
                if isinstance(value, torch.SymInt):
                    with graph.graph.inserting_before(result):
                        replacement = graph.graph.call_function(
                            torch.ops.aten.sym_size.int, (node.args[result.args[1] - 4], 2)
                        )
                    replacement.meta["val"] = value
                _replace_uses(graph.graph, result, replacement)
    graph.recompile()
    return graph


def _dropout_probability(node: Node) -> Any:
    normalized = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)  # type: ignore[arg-type]
    return normalized is None or normalized.kwargs.get("dropout_p", 0.0)


def _zeros_like(graph: GraphModule, example: torch.Tensor, constants: dict[str, Node]) -> Node:
    """Zeros of the shape of `example`, held by the graph once for each. Seeds are i64, also where those of flash
    attention are u64."""
    example = example.to(torch.int64) if example.dtype is torch.uint64 else example
    key = f"no_dropout_{str(example.dtype).removeprefix('torch.')}_{'_'.join(map(str, example.shape))}"
    if key not in constants:
        graph.register_buffer(
            key, torch.zeros([int(n) for n in example.shape], dtype=example.dtype, device=example.device)
        )
        with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
            constants[key] = graph.graph.get_attr(key)
        constants[key].meta["val"] = example
    return constants[key]


def _replace_uses(graph: Graph, node: Node, replacement: Any) -> None:
    for user in list(node.users):
        user.args, user.kwargs = torch.fx.node.map_arg(
            (user.args, user.kwargs), lambda n: replacement if n is node else n
        )
    graph.erase_node(node)
