"""Expand higher-order ops into ATen calls: flex attention, and scans, which are unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch._higher_order_ops.scan import scan_op
from torch.fx import GraphModule, Node

from compiler.frontend import graphs
from compiler.frontend.decompose import (
    RetracingInterpreter,
    decompositions,
    replace_inplace_detach,
    retrace,
)
from compiler.frontend.layouts import with_layout_of

_MOST_STEPS = 64  # the most steps of a scan that are unrolled


def _unroll_scan(combine: Callable[..., Any], init: Any, xs: Any, additional: Any = ()) -> Any:
    """Unroll a scan of at most `_MOST_STEPS` steps: the final state, then the stacked outputs of the steps."""
    steps = xs[0].shape[0]
    if type(steps) is not int or not 0 < steps <= _MOST_STEPS:
        return NotImplemented
    state, outputs = list(init), []
    for k in range(steps):
        results = combine(*state, *(x[k] for x in xs), *additional)
        state, out = list(results[: len(state)]), results[len(state) :]
        outputs.append(out)
    return [*state, *map(torch.stack, zip(*outputs, strict=True))]


_DEFINITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.flex_attention: math_attention, scan_op: _unroll_scan,
}  # fmt: skip


class _ExpandingInterpreter(RetracingInterpreter):
    """Runs a graph with the definitions in place of the ops; results get the strides of the ops' results."""

    def run_node(self, n: Node) -> Any:
        self.node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        results = _DEFINITIONS[target](*args, **kwargs) if target in _DEFINITIONS else NotImplemented
        if results is NotImplemented:
            return super().call_function(target, args, kwargs)
        return [with_layout_of(x, like) for x, like in zip(results, self.node.meta["val"], strict=True)]


def without_higher_order(graph: GraphModule) -> GraphModule:
    """Expand the higher-order ops of a graph that have a definition."""
    if not any(n.op == "call_function" and n.target in _DEFINITIONS for n in graph.graph.nodes):
        return graph
    placeholders = graphs.placeholders(graph)
    examples = [n.meta.get("val", 0) for n in placeholders]
    mode = graphs.fake_mode_of(placeholders)
    if mode is None:
        return graph
    expanded = retrace(
        graph, examples, mode, decompositions(), interpreter_class=_ExpandingInterpreter, pre_dispatch=False
    )
    replace_inplace_detach(expanded)
    return expanded
