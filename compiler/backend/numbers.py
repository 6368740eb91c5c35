"""A graph with complex numbers in; what runs it as a graph of their real and imaginary parts out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from compiler import frontend
from compiler.backend import passed_on
from compiler.backend.writes import INTO, Boxed
from compiler.errors import Unsupported
from compiler.frontend.graphs import output, placeholders

Compile = Callable[[GraphModule, Sequence[Any]], Boxed]


def compiled(
    graph: GraphModule, examples: Sequence[Any], compile: Compile, fallback: bool, seen: bool = False
) -> Boxed:
    """The graph by `compile`, complex tensors as real ones of a last dimension more; with the fallback, as it is where
    that cannot be.

    Where all results are `seen` by the caller, those that are views are made as such, of inputs or of what is computed.
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
    give = None if listed == computed else passed_on.giving(listed, computed, placeholders(graph))

    def run(inputs: list[Any]) -> Sequence[Any]:
        results = list(made([frontend.parts(x) for x in inputs]))
        for k in which:
            results[k] = torch.view_as_complex(results[k])
        return results if give is None else give(inputs, results)

    return run


def _computed(listed: Sequence[Any], kept: set[int]) -> list[Node]:
    """What to compute for these results: each one of those `kept`, and what others are views of."""
    nodes = [(n if k in kept else _source(n)) for k, n in enumerate(listed) if isinstance(n, Node)]
    return list(dict.fromkeys(n for n in nodes if n.op == "call_function"))


def _source(node: Node) -> Node:
    """What a value is a view of, if the one or the other is complex; itself, if it is none."""
    found = node
    while found.target is operator.getitem or (isinstance(found.target, OpOverload) and found.target.is_view):
        found = found.all_input_nodes[0]
    return found if any(frontend.is_complex(n.meta.get("val")) for n in (node, found)) else node
