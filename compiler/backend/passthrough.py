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
from torch.fx import Node
from torch.fx.node import map_arg


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
    recomputed = {n: _recomputation(x, position_of) for n, x in enumerate(outputs) if x not in position_of}
    positions = [position_of.get(x, 0) for x in outputs]

    def assemble(inputs: list[Any], computed_results: Sequence[Any]) -> list[Any]:
        values = (*inputs, *computed_results)
        results = [values[k] for k in positions]
        for n, make in recomputed.items():
            results[n] = make(values)
        return results

    return assemble


def _recomputation(output: Any, position_of: Mapping[Node, int]) -> Callable[[Sequence[Any]], Any]:
    """A function that computes a result of the graph from the values of nodes at these `position_of`."""
    if not isinstance(output, Node):
        return lambda values: output

    def again(node: Node, values: Sequence[Any]) -> Any:
        if node in position_of:
            return values[position_of[node]]
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(node.graph.owning_module)  # type: ignore[arg-type]
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: again(n, values))
        return node.target(*args, **kwargs)  # type: ignore[operator]

    return lambda values: again(output, values)


def required_offsets(placeholders: Sequence[Node], offsets: Mapping[str, int]) -> dict[int, int]:
    """Required storage offsets by position of the input; `offsets` has them by name."""
    return {k: offsets[n.name] for k, n in enumerate(placeholders) if n.name in offsets}


def check_offsets(inputs: Sequence[Any], offsets: Mapping[int, int]) -> None:
    """Raise ValueError for an input with another storage offset."""
    for k, offset in offsets.items():
        if inputs[k].storage_offset() != offset:
            raise ValueError(f"argument {k}: expected a tensor that begins {offset} elements into its memory")
