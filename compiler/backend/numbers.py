"""A graph with complex numbers in; what runs it as a graph of their real and imaginary parts out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler import frontend
from compiler.backend.writes import INTO, Boxed
from compiler.errors import Unsupported
from compiler.frontend.graphs import output, placeholders

Compile = Callable[[GraphModule, Sequence[Any]], Boxed]


def compiled(
    graph: GraphModule, examples: Sequence[Any], compile: Compile, fallback: bool, seen: bool = False
) -> Boxed:
    """The graph by `compile`, complex tensors as real ones of a last dimension more; with the fallback, as it is where
    that cannot be.

    Parts are put together for each result. Where all results are `seen` by the caller, none may be a view of another.
    """
    if not frontend.has_complex(graph):
        return compile(graph, examples)
    try:
        if seen:
            _check_apart(graph)
        real = frontend.as_real(graph)
    except Unsupported:
        if not fallback:
            raise
        return compile(graph, examples)
    old, new = output(graph), output(real)
    places = {n: k for k, n in enumerate(placeholders(graph))}
    inputs = placeholders(real)
    new.meta[INTO] = {
        n: inputs[places[x]] for n, x in old.meta.get(INTO, {}).items() if not frontend.is_complex(x.meta["val"])
    }
    listed: Any = old.args[0]
    which = [k for k, x in enumerate(listed) if isinstance(x, Node) and frontend.is_complex(x.meta.get("val"))]
    made = compile(real, [frontend.parts(x) for x in examples])

    def run(inputs: list[Any]) -> Sequence[Any]:
        results = list(made([frontend.parts(x) for x in inputs]))
        for k in which:
            results[k] = torch.view_as_complex(results[k])
        return results

    return run


def _check_apart(graph: GraphModule) -> None:
    """Raise Unsupported if complex results share memory with others."""
    results = [n.meta.get("val") for n in output(graph).all_input_nodes]
    tensors = [x for x in results if isinstance(x, torch.Tensor) and x.layout is torch.strided]
    memories = Counter(x.untyped_storage()._cdata for x in tensors)
    if any(memories[x.untyped_storage()._cdata] > 1 for x in tensors if frontend.is_complex(x)):
        raise Unsupported("complex numbers", (), "a result is a view of another one")
