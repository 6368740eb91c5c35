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
from compiler.frontend.graphs import output
from compiler.frontend.symbols import Symbols
from compiler.frontend.types import OURS
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
    """The nodes to compute, and for each result its node and which of them it is in; a number is in none.

    `copies` are those computed that torch has traced as views of arguments.
    """

    computed: tuple[Node, ...]
    places: tuple[tuple[Node, int], ...]
    copies: frozenset[int]

    def views(self, symbols: Symbols) -> tuple[View | Expr, ...]:
        """Each result as a view, numbers as expressions of sizes.

        Raises Unsupported where the program is not given a size that one needs.
        """
        known = set(symbols.sizes)
        out = tuple(self._view(node, source, symbols.size) for node, source in self.places)
        for symbol in symbols.sizes.keys() - known:
            raise Unsupported("symbolic size", (symbols.sizes[symbol].name,), "is not by itself a size of an input")
        return out

    def _view(self, node: Node, source: int, size: Callable[[Any], Expr]) -> View | Expr:
        x = node.meta["val"]
        if not isinstance(x, torch.Tensor):
            return size(x)
        whole = self.computed[source].meta["val"]
        memory, first = _sizes(whole.stride(), size), whole.storage_offset()
        # What torch traces as a view of an argument, and is a copy, begins its own memory.
        begin, offset = (0, 0) if source in self.copies else (first, x.storage_offset())
        return View(source, memory, size(begin), _sizes(x.shape, size), _sizes(x.stride(), size), size(offset))


def results(graph: GraphModule, wanted: Sequence[Node]) -> Results:
    """What to compute for the results `wanted`, tensors and numbers.

    What shares memory is made from the value of the graph that the memory was made for, unless one result alone is all
    of that value in another shape or order, and nothing else is made of it: that would have to be made in both forms.
    """
    owners = _owners(graph)
    read = {_memory(n) for n in graph.graph.nodes if any(_computes(user, n) for user in n.users)}
    sharing: dict[Node, list[Node]] = {}
    for node in wanted:
        if isinstance(node.meta.get("val"), torch.Tensor):
            sharing.setdefault(_owner(node, owners), []).append(node)
    chosen: dict[Node, Node] = {}
    for owner, nodes in sharing.items():
        source = nodes[0] if len(nodes) == 1 and _memory(owner) not in read and _is_whole(nodes[0], owner) else owner
        chosen |= dict.fromkeys(nodes, source)
    computed = tuple(dict.fromkeys(chosen.values()))
    places = tuple((n, computed.index(chosen[n]) if n in chosen else -1) for n in wanted)
    return Results(computed, places, frozenset(k for k, n in enumerate(computed) if _memory(n) not in owners))


def sources(graph: GraphModule) -> tuple[Node, ...]:
    """The values of a graph that the outputs of its program are, in order: what its results are made of."""
    return results(graph, [n for n in output(graph).args[0] if isinstance(n, Node)]).computed


def with_results(graph: GraphModule, computed: Sequence[Node], drop: bool = False) -> GraphModule:
    """A copy of the graph that gives these results alone; of what they do not need it has assertions only.

    With `drop` an argument that nothing reads is left out if no program can have it, of another element type, say.
    """
    copied = Graph()
    table: dict[Node, Node] = {}
    copied.graph_copy(graph.graph, table)
    copied.output(tuple(table[n] for n in computed))
    copied.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or n.meta.get("val") is None)
    for n in [n for n in copied.nodes if n.op == "placeholder" and not n.users]:
        x = n.meta.get("val")
        if drop and isinstance(x, torch.Tensor) and (x.dtype not in OURS or x.layout is not torch.strided):
            copied.erase_node(n)
    return GraphModule(graph, copied)


def _memory(node: Node) -> object:
    """What is the same for values that share memory."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return node
    return value.untyped_storage()._cdata


def _computes(user: Node, of: Node) -> bool:
    """Whether a call makes something of a value, and not only another view of it."""
    return user.op == "call_function" and _memory(user) != _memory(of)


def _owners(graph: GraphModule) -> dict[object, Node]:
    """For each memory the first value that has it; that of inputs has none."""
    out: dict[object, Node] = {}
    outer = {_memory(n) for n in graph.graph.nodes if n.op in ("placeholder", "get_attr")}
    for node in graph.graph.nodes:
        if node.op == "call_function" and _memory(node) not in outer:
            out.setdefault(_memory(node), node)
    return out


def _owner(node: Node, owners: dict[object, Node]) -> Node:
    """The value that the memory of this one was made for; itself, where it is not a view of that in the same type."""
    owner = owners.get(_memory(node), node)
    return owner if node.meta["val"].dtype == owner.meta["val"].dtype else node


def _is_whole(node: Node, owner: Node) -> bool:
    """Whether the value is all of what its owner is, densely, from the beginning of the memory on."""
    x, whole = node.meta["val"], owner.meta["val"]
    if node is owner:
        return True
    offsets = (x.storage_offset(), whole.storage_offset())
    if any(not isinstance(n, int) or n for n in offsets) or not statically_known_true(x.numel() == whole.numel()):
        return False
    size = Symbols().size
    return is_dense(_sizes(x.shape, size), _sizes(x.stride(), size))


def _sizes(values: Sequence[Any], size: Callable[[Any], Expr]) -> Shape:
    return tuple(map(size, values))
