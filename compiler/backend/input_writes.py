"""Separate a graph's final writes to its inputs: the new values become results, and writing them is a step of its own.

AOTAutograd leaves a mutation of an input that is hidden from autograd as one `copy_` at the end of the graph. Its
source becomes a result. A program may store such a result in the input's memory; any other is copied after the program.
An input that is given the memory of another tensor, by `set_` or by assigning its `data`, has one `set_` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from compiler.backend import tangents
from compiler.backend.index_puts import as_puts
from compiler.errors import Unsupported
from compiler.frontend import graphs

# A function of the list of a graph's inputs, which it may empty.
Boxed = Callable[[list[Any]], Sequence[Any]]
_aten = torch.ops.aten
_WRITES = (_aten.copy_.default, _aten.set_.source_Tensor)
INTO = "into"  # key in an output's meta: maps the position of each result to be written to the placeholder of its input


@dataclass(frozen=True)
class Writes:
    """Positions of the inputs that a graph writes, and of those that it gives other memory.

    The graph's last results are their new values, those of `moved` first.
    """

    written: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()


def refused(graph: GraphModule) -> Unsupported | None:
    """Why a graph must run in eager: a call changes an input in another way, for instance by resizing its memory."""
    for node in graph.graph.nodes:
        op = node.target
        if isinstance(op, OpOverload) and op._schema.is_mutable and op not in _WRITES:
            return Unsupported(str(op), node.args, "changes its argument in place")
    return None


def without_writes(graph: GraphModule, saves: bool = False) -> Writes:
    """Turn the values that a graph writes into results after its others.

    If the graph `saves` results for its gradient, those that alias a written input become copies of its old value.
    """
    placeholders = graphs.placeholders(graph)
    output = graphs.output(graph)
    news, memories = (_taken_out(graph, op) for op in _WRITES)
    news = {place: as_puts(graph, value, place) for place, value in news.items()}

    def held(x: Any) -> Any:
        return _copy_of(graph, x, output) if isinstance(x, Node) and _root(x) in news else x

    results = [*(held(x) if saves else x for x in output.args[0]), *memories.values()]
    output.args = ((*results, *map(held, news.values())),)
    output.meta[INTO] = {len(results) + n: place for n, place in enumerate(news)}
    if news or memories:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return Writes(tuple(map(placeholders.index, news)), tuple(map(placeholders.index, memories)))


def _taken_out(graph: GraphModule, op: Any) -> dict[Node, Node]:
    """Remove the calls of a write op; return the new value of each input that they change."""
    placeholders, output = graphs.placeholders(graph), graphs.output(graph)
    values: dict[Node, Node] = {}
    for node in [n for n in graph.graph.nodes if n.target is op]:
        place, value = node.args[0], node.args[1]
        if place not in placeholders or not isinstance(value, Node) or set(node.users) - {output}:
            raise Unsupported(
                str(node.target), node.args, "writes to a tensor that is not an input, or before the end of the graph"
            )
        values[place] = value
        node.replace_all_uses_with(place)
        graph.graph.erase_node(node)
    return values


def _is_frozen(x: torch.Tensor) -> bool:
    return x.is_inference() and not torch.is_inference_mode_enabled()


def performing(run: Boxed, last: Writes) -> Boxed:
    """Run a graph without its writes, then perform them."""
    return moving(writing(run, last.written), last.moved)


def moving(run: Boxed, places: Sequence[int]) -> Boxed:
    """Run a graph, then give the inputs at `places` the memory of its last results."""
    if not places:
        return run

    def run_and_move(inputs: list[Any]) -> Sequence[Any]:
        given = [inputs[k] for k in places]
        made = run(inputs)
        count = len(made) - len(given)
        with torch.no_grad():
            for x, new in zip(given, made[count:], strict=True):
                x.set_(new)
        return made[:count]

    return run_and_move


def writing(run: Boxed, places: Sequence[int]) -> Boxed:
    """Run a graph, then copy its last results to the inputs at `places`, except those that it has stored there itself.

    AOTAutograd increments version counters where needed; writing through `data` does not.
    """
    if not places:
        return run

    def run_and_write(inputs: list[Any]) -> Sequence[Any]:
        given = [inputs[k] for k in places]
        if any(map(_is_frozen, given)):
            raise RuntimeError(
                "an in-place update of a tensor that was made in inference mode, outside of it: clone the tensor first"
            )
        made = run(inputs)
        count = len(made) - len(given)
        # `_foreach_copy_` copies tensors of one pair of types in one kernel.
        left: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for x, new in zip(given, made[count:], strict=True):
            if tangents.found((x, new)):
                with torch.no_grad():
                    x.copy_(new)
            elif x.is_neg() or x.is_conj():  # lists must not hold tensors with a lazy negation or conjugation
                x.data.copy_(new)
            elif new is not x:
                olds, news = left.setdefault((x.dtype, new.dtype), ([], []))
                olds.append(x.data)
                news.append(new)
        for olds, news in left.values():
            torch._foreach_copy_(olds, news)
        return made[:count]

    return run_and_write


def _root(node: Node) -> Node:
    """The input or computed value that a value is a view of; itself if it is no view."""
    while getattr(node.target, "is_view", False) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _copy_of(graph: GraphModule, value: Node, before: Node) -> Node:
    with graph.graph.inserting_before(before):
        made = graph.graph.call_function(_aten.clone.default, (value,))
    x = value.meta["val"]
    with x.fake_mode:
        made.meta["val"] = x.clone()
    return made
