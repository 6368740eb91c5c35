"""Partition the joint graph of a forward and a backward pass so that few bytes are saved between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy

from compiler import frontend
from compiler.backend import saved_constants, saved_images, saved_indices, saved_order, saved_packs, saved_rows
from compiler.frontend import graphs

_aten = torch.ops.aten
_EQUALITIES = frozenset({_aten.eq, _aten.ne})


def partition(
    joint: GraphModule, inputs: Sequence[Any], *, for_gpu: bool = False, **options: Any
) -> tuple[GraphModule, GraphModule]:
    """Return the forward and the backward graph; `for_gpu` lays out saved tensors as kernels of GPUs read them.

    Most are handed over in packs.

    Operands of equality comparisons are always saved: recomputed in another kernel, a value may differ in its last bit,
    and the gradient of amax compares elements with the largest one. A log_softmax is not saved. The backward pass
    recomputes it from its operand, which is available in any case, often in 16 bits, and from two numbers per row.

    Equal calls are united here: the partitioner would leave the views of those that it drops in their memory.
    """
    for node in list(joint.graph.nodes):
        if node.target is _aten.detach.default:  # which the partitioner would count as a read from memory
            node.replace_all_uses_with(node.args[0], lambda user: user.op != "output")
        if node.target is _aten._log_softmax.default and _can_decompose(node):
            _decompose_log_softmax(node)
    joint.graph.eliminate_dead_code()
    joint.graph = fx_graph_cse(joint.graph)
    graphs.refresh_views(joint)
    for node in joint.graph.nodes:
        if getattr(node.target, "overloadpacket", None) in _EQUALITIES:
            for operand in node.all_input_nodes:
                operand.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    with functorch.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    _describe_random_calls(backward)
    saved_constants.hold(forward, backward, options["num_fwd_outputs"])
    saved_order.make_rows_contiguous(forward, backward, options["num_fwd_outputs"])
    if for_gpu:
        saved_images.put_channels_innermost(forward, backward, options["num_fwd_outputs"])
        saved_rows.align_rows(forward, backward, options["num_fwd_outputs"])
        saved_indices.save_narrow_indices(forward, backward, options["num_fwd_outputs"])
    saved_packs.pack(forward, backward, options["num_fwd_outputs"], for_gpu)
    return forward, backward


def _describe_random_calls(backward: GraphModule) -> None:
    """Give random calls that checkpoints repeat a fake value, which the partitioner makes without one."""
    for node in backward.graph.find_nodes(op="call_function", target=torch.ops.higher_order.run_with_rng_state):
        if "val" not in node.meta:
            (state, op, *args), kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with state.fake_mode:
                node.meta["val"] = op(*args, **kwargs)


def _can_decompose(node: Node) -> bool:
    x: Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    return x.is_contiguous() and all(n != 0 for n in x.shape)


def _decompose_log_softmax(node: Node) -> None:
    """Replace a log_softmax by its steps, so that the partitioner knows which of them are cheap to recompute."""
    graph, (operand, dim, _) = node.graph, node.args
    x: Tensor = operand.meta["val"]  # type: ignore[union-attr]
    dtype = node.meta["val"].dtype

    def steps(x: Tensor) -> Tensor:
        wide = frontend.widened(x)
        shifted = wide - wide.amax(dim, keepdim=True)  # type: ignore[arg-type]
        return (shifted - shifted.exp().sum(dim, keepdim=True).log()).to(dtype)  # type: ignore[arg-type]

    with x.fake_mode:  # type: ignore[attr-defined]
        parts = make_fx(steps)(x).graph
    first = next(iter(parts.nodes))
    table: dict[Node, Node] = {first: operand}  # type: ignore[dict-item]
    with graph.inserting_before(node):
        made = graph.graph_copy(parts, table)
    for part in parts.nodes:
        if part is not first and part in table:
            table[part].meta = {**node.meta, "val": part.meta["val"], "tensor_meta": part.meta.get("tensor_meta")}
    node.replace_all_uses_with(made)  # type: ignore[arg-type]
    graph.erase_node(node)
