"""Higher-order ops as what they do to tensors: attention with a function of its scores, and scans step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch._higher_order_ops.scan import scan_op
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from compiler.frontend import graphs
from compiler.frontend.decompose import Holding, as_laid, decompositions, kept_constants, retrace

_LONGEST = 64  # steps of a scan


def _scanned(combine: Callable[..., Any], init: Any, xs: Any, additional: Any = ()) -> Any:
    """The last state, and what each step gives side by side."""
    steps = xs[0].shape[0]
    if type(steps) is not int or not 0 < steps <= _LONGEST:
        return NotImplemented
    state, made = list(init), []
    for k in range(steps):
        found = combine(*state, *(x[k] for x in xs), *additional)
        state, out = list(found[: len(state)]), found[len(state) :]
        made.append(out)
    return [*state, *map(torch.stack, zip(*made, strict=True))]


_DEFINITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.flex_attention: math_attention, scan_op: _scanned,
}  # fmt: skip


class _Expanding(Holding):
    """Runs a graph with the definitions in the place of the ops, whose results lie where those of the ops do."""

    def run_node(self, n: Node) -> Any:
        self.node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        made = _DEFINITIONS[target](*args, **kwargs) if target in _DEFINITIONS else NotImplemented
        if made is NotImplemented:
            return super().call_function(target, args, kwargs)
        return [as_laid(x, like) for x, like in zip(made, self.node.meta["val"], strict=True)]


def without_higher_order(graph: GraphModule) -> GraphModule:
    """The graph with the definitions of those higher-order ops that have one."""
    if not any(n.op == "call_function" and n.target in _DEFINITIONS for n in graph.graph.nodes):
        return graph
    examples = [n.meta.get("val", 0) for n in graphs.placeholders(graph)]
    mode = next((v.fake_mode for v in examples if isinstance(v, FakeTensor)), None)
    if mode is None:
        return graph
    made = retrace(graph, examples, mode, decompositions(), reader=_Expanding, pre_dispatch=False)
    kept_constants(made)
    return made
