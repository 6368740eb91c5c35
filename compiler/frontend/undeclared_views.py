"""Ops that may return an argument or a view of it, although their schemas do not say so.

Functionalisation takes their results for copies: what is written to a result does not reach the argument, nor what is
written to the argument the result. `declare` and `DEFINITIONS` write them as what torch knows to be views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler.errors import Unsupported
from compiler.passes.torch_to_tensor.contract import einsum_labels

_aten = torch.ops.aten


def _broadcast(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]
    return [x.expand(shape) for x in tensors]


DEFINITIONS: dict[Any, Callable[..., Any]] = {_aten.broadcast_tensors.default: _broadcast}


def declare(graph: GraphModule) -> None:
    """Replace dropout that is off by its argument, and einsum that only orders axes by a permutation, in place.

    Raises Unsupported for an einsum of one operand that takes a diagonal.
    """
    for node in list(graph.graph.nodes):
        match node.target, node.args:
            case _aten.dropout.default, (x, _, False):
                node.replace_all_uses_with(x)
                graph.graph.erase_node(node)
            case _aten.einsum.default, (equation, (x,), *_):
                axes = _permutation(node, equation, x)
                if axes is not None:
                    node.target, node.args = _aten.permute.default, (x, axes)
    graph.recompile()


def _permutation(node: Node, equation: str, x: Node) -> list[int] | None:
    """The order of the operand's axes in the result, if that has all of them; None if the equation sums over some."""

    def refuse(reason: str) -> Unsupported:
        return Unsupported(str(node.target), (equation,), reason)

    (operand,), result = einsum_labels(equation, [x.meta["val"].dim()], refuse)
    if len({*operand}) < len(operand):
        raise refuse("may be a view of its operand, and tensors change in place")
    return [operand.index(label) for label in result] if len(result) == len(operand) else None
