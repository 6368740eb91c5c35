"""Results of a graph in; the values to compute for them, and each result as a view of the memory of one of these, out.

The fake tensors that a graph carries have storages: what shares one is to share memory, as it does in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from compiler.errors import Unsupported
from compiler.frontend.symbols import Symbols
from compiler.ir.expr import Expr
from compiler.passes.torch_to_tensor.positions import is_dense

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class View:
    """A result in the memory of the program's output `source`, which is to lie there from `begin` on with `memory` as
    its strides; `offset` counts from the beginning of that memory."""

    source: int
    memory: Shape
    begin: Expr
    shape: Shape
    strides: Shape
    offset: Expr


@dataclass(frozen=True)
class Results:
    """The nodes to compute, and for each result its example and which of them it is in; a number is in none."""

    computed: tuple[Node, ...]
    places: tuple[tuple[Any, int], ...]

    def views(self, symbols: Symbols) -> tuple[View | Expr, ...]:
        """Each result as a view, numbers as expressions of sizes.

        Raises Unsupported where the program is not given a size that one needs.
        """
        known = set(symbols.sizes)
        out = tuple(
            self._view(source, x, symbols.size) if isinstance(x, torch.Tensor) else symbols.size(x)
            for x, source in self.places
        )
        for symbol in symbols.sizes.keys() - known:
            raise Unsupported("symbolic size", (symbols.sizes[symbol].name,), "is not by itself a size of an input")
        return out

    def _view(self, source: int, x: torch.Tensor, size: Callable[[Any], Expr]) -> View:
        whole = self.computed[source].meta["val"]
        memory, begin = _sizes(whole.stride(), size), size(whole.storage_offset())
        return View(source, memory, begin, _sizes(x.shape, size), _sizes(x.stride(), size), size(x.storage_offset()))


def results(graph: GraphModule, wanted: Sequence[Node]) -> Results:
    """What to compute for the results `wanted`, tensors and numbers.

    What shares memory is made from the first value of the graph that has it, unless one result alone is all of that
    value in another shape or order.
    """
    owners = _owners(graph)
    sharing: dict[Node, list[Node]] = {}
    tensors = [n for n in wanted if isinstance(n.meta.get("val"), torch.Tensor)]
    for node in tensors:
        sharing.setdefault(owners.get(_memory(node), node), []).append(node)
    chosen: dict[Node, Node] = {}
    for owner, nodes in sharing.items():
        source = nodes[0] if len(nodes) == 1 and _is_whole(nodes[0], owner) else owner
        chosen |= dict.fromkeys(nodes, source)
    computed = tuple(dict.fromkeys(chosen.values()))
    return Results(
        computed, tuple((n.meta.get("val"), computed.index(chosen[n]) if n in chosen else -1) for n in wanted)
    )


def with_results(graph: GraphModule, computed: Sequence[Node]) -> GraphModule:
    """A copy of the graph that gives these results alone."""
    copied = Graph()
    table: dict[Node, Node] = {}
    copied.graph_copy(graph.graph, table)
    copied.output(tuple(table[n] for n in computed))
    return GraphModule(graph, copied)


def _memory(node: Node) -> object:
    """What is the same for values of one type that share memory."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return node
    return value.untyped_storage()._cdata, value.dtype


def _owners(graph: GraphModule) -> dict[object, Node]:
    """For each memory the first value that has it; that of inputs has none."""
    out: dict[object, Node] = {}
    outer = {_memory(n) for n in graph.graph.nodes if n.op in ("placeholder", "get_attr")}
    for node in graph.graph.nodes:
        if node.op == "call_function" and _memory(node) not in outer:
            out.setdefault(_memory(node), node)
    return out


def _is_whole(node: Node, owner: Node) -> bool:
    """Whether the value is all of what its owner is, densely, from the beginning of the memory on."""
    x, whole = node.meta["val"], owner.meta["val"]
    if node is owner:
        return True
    if (
        not isinstance(x.storage_offset(), int)
        or x.storage_offset()
        or not statically_known_true(x.numel() == whole.numel())
    ):
        return False
    size = Symbols().size
    return is_dense(_sizes(x.shape, size), _sizes(x.stride(), size))


def _sizes(values: Sequence[Any], size: Callable[[Any], Expr]) -> Shape:
    return tuple(map(size, values))
