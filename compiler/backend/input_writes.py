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
from compiler.backend.index_puts import rewrite_as_puts
from compiler.errors import Unsupported
from compiler.frontend import graphs

# A function of the list of a graph's inputs, which it may empty.
Boxed = Callable[[list[Any]], Sequence[Any]]
_aten = torch.ops.aten
WRITES = (_aten.copy_.default, _aten.set_.source_Tensor)
INTO = "into"  # key in an output's meta: maps the position of each result to be written to the placeholder of its input


@dataclass(frozen=True)
class Writes:
    """Positions of the inputs that a graph writes, and of those that it gives other memory.

    The graph's last results are their new values, those of `rebound` first.
    """

    written: tuple[int, ...] = ()
    rebound: tuple[int, ...] = ()


def unsupported_mutation(graph: GraphModule) -> Unsupported | None:
    """Why a graph must run in eager: a call changes an input in another way, for instance by resizing its memory."""
    for node in graph.graph.nodes:
        op = node.target
        if isinstance(op, OpOverload) and op._schema.is_mutable and op not in WRITES:
            return Unsupported(str(op), node.args, "changes its argument in place")
    return None


def separate_writes(graph: GraphModule, saves: bool = False) -> Writes:
    """Turn the values that a graph writes into results after its others.

    If the graph `saves` results for its gradient, those that alias a written input become copies of its old value.
    """
    placeholders = graphs.placeholders(graph)
    output = graphs.output(graph)
    new_values, new_memories = (_remove_writes(graph, op) for op in WRITES)
    new_values = {placeholder: rewrite_as_puts(graph, value, placeholder) for placeholder, value in new_values.items()}

    def preserved(x: Any) -> Any:
        return _copy_of(graph, x, output) if isinstance(x, Node) and _root(x) in new_values else x

    results = [*(preserved(x) if saves else x for x in output.args[0]), *new_memories.values()]
    output.args = ((*results, *map(preserved, new_values.values())),)
    output.meta[INTO] = {len(results) + n: placeholder for n, placeholder in enumerate(new_values)}
    if new_values or new_memories:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return Writes(tuple(map(placeholders.index, new_values)), tuple(map(placeholders.index, new_memories)))


def _remove_writes(graph: GraphModule, op: Any) -> dict[Node, Node]:
    """Remove the calls of a write op; return the new value of each input that they change."""
    placeholders, output = graphs.placeholders(graph), graphs.output(graph)
    values: dict[Node, Node] = {}
    for node in [n for n in graph.graph.nodes if n.target is op]:
        placeholder, value = node.args[0], node.args[1]
        if placeholder not in placeholders or not isinstance(value, Node) or set(node.users) - {output}:
            raise Unsupported(
                str(node.target), node.args, "writes to a tensor that is not an input, or before the end of the graph"
            )
        values[placeholder] = value
        node.replace_all_uses_with(placeholder)
        graph.graph.erase_node(node)
    return values


def with_writes(run: Boxed, writes: Writes) -> Boxed:
    """Run a graph without its writes, then perform them."""
    return with_rebinding(with_copies(run, writes.written), writes.rebound)


def with_rebinding(run: Boxed, positions: Sequence[int]) -> Boxed:
    """Run a graph, then give the inputs at `positions` the memory of its last results."""
    if not positions:
        return run

    def run_and_move(inputs: list[Any]) -> Sequence[Any]:
        inputs_to_rebind = [inputs[k] for k in positions]
        results = run(inputs)
        count = len(results) - len(inputs_to_rebind)
        with torch.no_grad():
            for x, new in zip(inputs_to_rebind, results[count:], strict=True):
                x.set_(new)
        return results[:count]

    return run_and_move


def with_copies(run: Boxed, positions: Sequence[int]) -> Boxed:
    """Run a graph, then copy its last results to the inputs at `positions`, except those that it has stored there
    itself.

    AOTAutograd increments version counters where needed; writing through `data` does not.
    """
    if not positions:
        return run

    def run_and_write(inputs: list[Any]) -> Sequence[Any]:
        written = [inputs[k] for k in positions]
        if not torch.is_inference_mode_enabled() and any(map(torch.is_inference, written)):
            raise RuntimeError(
                "an in-place update of a tensor that was made in inference mode, outside of it: clone the tensor first"
            )
        results = run(inputs)
        count = len(results) - len(written)
        # `_foreach_copy_` copies tensors of one pair of types in one kernel.
        copies: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for x, new in zip(written, results[count:], strict=True):
            if new is x:
                continue
            if tangents.has_tangent((x, new)):
                with torch.no_grad():
                    x.copy_(new)
            elif x.is_neg() or x.is_conj():  # lists must not hold tensors with a lazy negation or conjugation
                x.data.copy_(new)
            else:
                destinations, sources = copies.setdefault((x.dtype, new.dtype), ([], []))
                destinations.append(x.data)
                sources.append(new)
        for destinations, sources in copies.values():
            torch._foreach_copy_(destinations, sources)
        return results[:count]

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
