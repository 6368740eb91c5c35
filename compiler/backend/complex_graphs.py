"""Compile graphs with complex numbers as graphs of their real and imaginary parts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from compiler import frontend
from compiler.backend import passthrough
from compiler.backend.input_writes import INTO, Boxed
from compiler.errors import Unsupported
from compiler.frontend.graphs import output, placeholders

Compile = Callable[[GraphModule, Sequence[Any]], Boxed]


def compile_as_real(
    graph: GraphModule, examples: Sequence[Any], compile: Compile, fallback: bool, recreate_views: bool = False
) -> Boxed:
    """Compile a graph with complex tensors replaced by real tensors with a last dimension of 2.

    If that raises Unsupported, the graph is compiled as it is with `fallback`; otherwise the exception propagates. With
    `recreate_views`, results that are views are recreated as views of inputs or of computed results.
    """
    if not frontend.has_complex(graph):
        return compile(graph, examples)
    outputs: list[Any] = list(output(graph).args[0])
    destinations = output(graph).meta.get(INTO, {})
    computed = _values_to_compute(outputs, set(destinations) if recreate_views else set(range(len(outputs))))
    reduced = frontend.with_results(graph, computed)
    try:
        real = frontend.as_real(reduced)
    except Unsupported:
        if not fallback:
            raise
        return compile(graph, examples)
    positions, inputs = {n: k for k, n in enumerate(placeholders(graph))}, placeholders(real)
    output(real).meta[INTO] = {
        computed.index(outputs[n]): inputs[positions[x]]
        for n, x in destinations.items()
        if not frontend.is_complex(x.meta["val"])
    }
    complex_positions = [k for k, n in enumerate(computed) if frontend.is_complex(n.meta.get("val"))]
    run_real = compile(real, [frontend.parts(x) for x in examples])
    assemble = None if outputs == computed else passthrough.result_assembler(outputs, computed, placeholders(graph))

    def run(inputs: list[Any]) -> Sequence[Any]:
        results = list(run_real([frontend.parts(x) for x in inputs]))
        for k in complex_positions:
            results[k] = torch.view_as_complex(results[k])
        return results if assemble is None else assemble(inputs, results)

    return run


def _values_to_compute(outputs: Sequence[Any], kept_positions: set[int]) -> list[Node]:
    """The nodes to compute for these results: each result at a position in `kept_positions`, and the bases of other
    results."""
    nodes = [(n if k in kept_positions else _complex_base(n)) for k, n in enumerate(outputs) if isinstance(n, Node)]
    return list(dict.fromkeys(n for n in nodes if n.op == "call_function"))


def _complex_base(node: Node) -> Node:
    """The base that a node is a view of if the node or the base is complex; otherwise the node itself."""
    base = node
    while base.target is operator.getitem or (isinstance(base.target, OpOverload) and base.target.is_view):
        base = base.all_input_nodes[0]
    return base if any(frontend.is_complex(n.meta.get("val")) for n in (node, base)) else node
