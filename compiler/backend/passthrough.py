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


Giving = Callable[[list[Any], Sequence[Any]], list[Any]]


def giving(listed: list[Any], computed: list[Node], placeholders: list[Node]) -> Giving:
    """A function from the graph's inputs and the program's results to the graph's results.

    Any result that is in neither is recomputed by the graph's calls.
    """
    places = {n: k for k, n in enumerate((*placeholders, *computed))}
    made_anew = {n: _maker(x, places) for n, x in enumerate(listed) if x not in places}
    picked = [places.get(x, 0) for x in listed]

    def give(inputs: list[Any], made: Sequence[Any]) -> list[Any]:
        every = (*inputs, *made)
        results = [every[k] for k in picked]
        for n, make in made_anew.items():
            results[n] = make(every)
        return results

    return give


def _maker(result: Any, places: Mapping[Node, int]) -> Callable[[Sequence[Any]], Any]:
    """A function that computes a result of the graph from the values of nodes at these `places`."""
    if not isinstance(result, Node):
        return lambda known: result

    def again(node: Node, known: Sequence[Any]) -> Any:
        if node in places:
            return known[places[node]]
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(node.graph.owning_module)  # type: ignore[arg-type]
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: again(n, known))
        return node.target(*args, **kwargs)  # type: ignore[operator]

    return lambda known: again(result, known)


def begins(placeholders: Sequence[Node], offsets: Mapping[str, int]) -> dict[int, int]:
    """Required storage offsets by position of the input; `offsets` has them by name."""
    return {k: offsets[n.name] for k, n in enumerate(placeholders) if n.name in offsets}


def check(inputs: Sequence[Any], begins: Mapping[int, int]) -> None:
    """Raise ValueError for an input with another storage offset."""
    for k, offset in begins.items():
        if inputs[k].storage_offset() != offset:
            raise ValueError(f"argument {k}: expected a tensor that begins {offset} elements into its memory")
