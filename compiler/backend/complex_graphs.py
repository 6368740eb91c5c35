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


def compiled(
    graph: GraphModule, examples: Sequence[Any], compile: Compile, fallback: bool, seen: bool = False
) -> Boxed:
    """Compile a graph with complex tensors replaced by real tensors with a last dimension of 2.

    If that raises Unsupported, the graph is compiled as it is with `fallback`; otherwise the exception propagates. If
    all results are `seen` by the caller, those that are views are recreated as views of inputs or of computed results.
    """
    if not frontend.has_complex(graph):
        return compile(graph, examples)
    listed: list[Any] = list(output(graph).args[0])
    into = output(graph).meta.get(INTO, {})
    computed = _computed(listed, set(into) if seen else set(range(len(listed))))
    reduced = frontend.with_results(graph, computed)
    try:
        real = frontend.as_real(reduced)
    except Unsupported:
        if not fallback:
            raise
        return compile(graph, examples)
    places, inputs = {n: k for k, n in enumerate(placeholders(graph))}, placeholders(real)
    output(real).meta[INTO] = {
        computed.index(listed[n]): inputs[places[x]] for n, x in into.items() if not frontend.is_complex(x.meta["val"])
    }
    which = [k for k, n in enumerate(computed) if frontend.is_complex(n.meta.get("val"))]
    made = compile(real, [frontend.parts(x) for x in examples])
    give = None if listed == computed else passthrough.giving(listed, computed, placeholders(graph))

    def run(inputs: list[Any]) -> Sequence[Any]:
        results = list(made([frontend.parts(x) for x in inputs]))
        for k in which:
            results[k] = torch.view_as_complex(results[k])
        return results if give is None else give(inputs, results)

    return run


def _computed(listed: Sequence[Any], kept: set[int]) -> list[Node]:
    """The nodes to compute for these results: each result at a position in `kept`, and the bases of other results."""
    nodes = [(n if k in kept else _source(n)) for k, n in enumerate(listed) if isinstance(n, Node)]
    return list(dict.fromkeys(n for n in nodes if n.op == "call_function"))


def _source(node: Node) -> Node:
    """The base that a node is a view of if the node or the base is complex; otherwise the node itself."""
    found = node
    while found.target is operator.getitem or (isinstance(found.target, OpOverload) and found.target.is_view):
        found = found.all_input_nodes[0]
    return found if any(frontend.is_complex(n.meta.get("val")) for n in (node, found)) else node
