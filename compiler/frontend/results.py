"""Choose the values to compute for the results of a graph, and describe each result as a view of one of these.

The fake tensors that a graph carries have storages: results that share one must share memory, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from compiler.errors import Unsupported
from compiler.frontend.graphs import memory_of, output
from compiler.frontend.symbols import Symbols
from compiler.frontend.types import IR_DTYPES
from compiler.ir.expr import Expr
from compiler.passes.torch_to_tensor.positions import is_dense

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class View:
    """A result that is a view of the program's output `source`.

    The output is stored with strides `memory` from element `begin` of its memory on; `offset` counts from the beginning
    of that memory.
    """

    source: int
    memory: Shape
    begin: Expr
    shape: Shape
    strides: Shape
    offset: Expr


@dataclass(frozen=True)
class Results:
    """The nodes to compute, and for each result its node and the index of the computed node it is in (-1 for a number).

    `copies` are the computed nodes that torch has traced as views of arguments, which are copies in the program.
    """

    computed: tuple[Node, ...]
    sources: tuple[tuple[Node, int], ...]
    copies: frozenset[int]

    def views(self, symbols: Symbols) -> tuple[View | Expr, ...]:
        """Each result as a view; a number as an expression of sizes.

        Raises Unsupported if a result needs a size that is not a size of an input.
        """
        known = set(symbols.sizes)
        out = tuple(self._view(node, source, symbols.size) for node, source in self.sources)
        for symbol in symbols.sizes.keys() - known:
            raise Unsupported("symbolic size", (symbols.sizes[symbol].name,), "is not by itself a size of an input")
        return out

    def _view(self, node: Node, source: int, size: Callable[[Any], Expr]) -> View | Expr:
        x = node.meta["val"]
        if not isinstance(x, torch.Tensor):
            return size(x)
        base = self.computed[source].meta["val"]
        memory, base_offset = _sizes(base.stride(), size), base.storage_offset()
        # A copy of what torch traced as a view of an argument begins its own memory.
        start, offset = (0, 0) if source in self.copies else (base_offset, x.storage_offset())
        return View(source, memory, size(start), _sizes(x.shape, size), _sizes(x.stride(), size), size(offset))


def results(graph: GraphModule, result_nodes: Sequence[Node]) -> Results:
    """What to compute for the results `result_nodes`, tensors and numbers.

    Results that share memory are views of the value that first had the memory. A single result is computed directly if
    it is all of that value in another shape or order and nothing else reads the value; otherwise both forms would be
    made.
    """
    owners = _owners(graph)
    read_storages = {memory_of(n) for n in graph.graph.nodes if any(_computes_from(user, n) for user in n.users)}
    nodes_of: dict[Node, list[Node]] = {}
    for node in result_nodes:
        if isinstance(node.meta.get("val"), torch.Tensor):
            nodes_of.setdefault(_owner(node, owners), []).append(node)
    source_of: dict[Node, Node] = {}
    for owner, nodes in nodes_of.items():
        source = (
            nodes[0]
            if len(nodes) == 1 and memory_of(owner) not in read_storages and _covers_owner(nodes[0], owner)
            else owner
        )
        source_of |= dict.fromkeys(nodes, source)
    computed = tuple(dict.fromkeys(source_of.values()))
    result_sources = tuple((n, computed.index(source_of[n]) if n in source_of else -1) for n in result_nodes)
    return Results(computed, result_sources, frozenset(k for k, n in enumerate(computed) if memory_of(n) not in owners))


def sources(graph: GraphModule) -> tuple[Node, ...]:
    """The nodes of a graph that become the outputs of its program, in order."""
    return results(graph, [n for n in output(graph).args[0] if isinstance(n, Node)]).computed


def with_results(graph: GraphModule, computed: Sequence[Node], drop: bool = False) -> GraphModule:
    """A copy of the graph that returns only these results; assertions are kept.

    With `drop`, unread arguments that no program can take are left out, for instance those of another element type.
    """
    copied = Graph()
    copy_of: dict[Node, Node] = {}
    copied.graph_copy(graph.graph, copy_of)
    copied.output(tuple(copy_of[n] for n in computed))
    copied.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or n.meta.get("val") is None)
    for n in [n for n in copied.nodes if n.op == "placeholder" and not n.users]:
        x = n.meta.get("val")
        if drop and isinstance(x, torch.Tensor) and (x.dtype not in IR_DTYPES or x.layout is not torch.strided):
            copied.erase_node(n)
    return GraphModule(graph, copied)


def _computes_from(user: Node, source: Node) -> bool:
    """Whether a call computes something from a value, rather than another view of it."""
    return user.op == "call_function" and memory_of(user) != memory_of(source)


def _owners(graph: GraphModule) -> dict[object, Node]:
    """The first value in each memory; inputs and their views are not included."""
    out: dict[object, Node] = {}
    outer = {memory_of(n) for n in graph.graph.nodes if n.op in ("placeholder", "get_attr")}
    for node in graph.graph.nodes:
        if node.op == "call_function" and memory_of(node) not in outer:
            out.setdefault(memory_of(node), node)
    return out


def _owner(node: Node, owners: dict[object, Node]) -> Node:
    """The value that a value's memory was made for; itself if the types differ or the memory is an input's."""
    owner = owners.get(memory_of(node), node)
    return owner if node.meta["val"].dtype == owner.meta["val"].dtype else node


def _covers_owner(node: Node, owner: Node) -> bool:
    """Whether a value is all of `owner`, dense, from the beginning of the memory on."""
    x, base = node.meta["val"], owner.meta["val"]
    if node is owner:
        return True
    offsets = (x.storage_offset(), base.storage_offset())
    if any(not isinstance(n, int) or n for n in offsets) or not statically_known_true(x.numel() == base.numel()):
        return False
    size = Symbols().size
    return is_dense(_sizes(x.shape, size), _sizes(x.stride(), size))


def _sizes(values: Sequence[Any], size: Callable[[Any], Expr]) -> Shape:
    return tuple(map(size, values))
