"""Results of a graph that its program does not compute: inputs, views of inputs, and numbers computed from sizes.

They are made from the inputs. A program takes each input from its first element. If it addresses an input from the
beginning of its memory, the input must have the storage offset that the program was compiled for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node


def is_passed_on(node: Node) -> bool:
    """Whether a node is an input, a view of one, or a number computed from sizes of inputs."""
    if node.op in ("placeholder", "get_attr"):
        return True
    is_number = isinstance(node.meta.get("val"), torch.SymInt)
    is_view = node.target is operator.getitem or (isinstance(node.target, OpOverload) and node.target.is_view)
    return node.op == "call_function" and (is_number or is_view) and all(map(is_passed_on, node.all_input_nodes))


Assemble = Callable[[list[Any], Sequence[Any]], list[Any]]


def result_assembler(outputs: list[Any], computed: list[Node], placeholders: list[Node]) -> Assemble:
    """A function from the graph's inputs and the program's results to the graph's results.

    Any result that is in neither is recomputed by the graph's calls.
    """
    position_of = {n: k for k, n in enumerate((*placeholders, *computed))}
    constants = {n: x for n, x in enumerate(outputs) if not isinstance(x, Node)}
    recomputed = {n: x for n, x in enumerate(outputs) if isinstance(x, Node) and x not in position_of}
    recompute = _recomputation(list(recomputed.values()), position_of) if recomputed else None
    positions = [position_of.get(x, 0) for x in outputs]

    def assemble(inputs: list[Any], computed_results: Sequence[Any]) -> list[Any]:
        values = (*inputs, *computed_results)
        results = [values[k] for k in positions]
        for n, x in constants.items():
            results[n] = x
        if recompute is not None:
            for n, x in zip(recomputed, recompute(values), strict=True):
                results[n] = x
        return results

    return assemble


def _recomputation(nodes: Sequence[Node], position_of: Mapping[Node, int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that computes nodes of one graph from the values of those at these positions."""
    graph = Graph()
    copies = {n: graph.placeholder(n.name) for n in position_of}
    graph.graph_copy(nodes[0].graph, copies)  # all but these
    graph.output(tuple(copies[n] for n in nodes))
    graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))
    taken = [k for n, k in position_of.items() if copies[n].users]
    for n in position_of:
        if not copies[n].users:
            graph.erase_node(copies[n])
    forward = GraphModule(nodes[0].graph.owning_module or {}, graph).forward
    return lambda values: forward(*(values[k] for k in taken))


def required_offsets(placeholders: Sequence[Node], offsets: Mapping[str, int]) -> dict[int, int]:
    """Required storage offsets by position of the input; `offsets` has them by name."""
    return {k: offsets[n.name] for k, n in enumerate(placeholders) if n.name in offsets}


def check_offsets(inputs: Sequence[Any], offsets: Mapping[int, int]) -> None:
    """Raise ValueError for an input with another storage offset."""
    for k, offset in offsets.items():
        if inputs[k].storage_offset() != offset:
            raise ValueError(f"argument {k}: expected a tensor that begins {offset} elements into its memory")
