"""A random program in; the graph of the ATen calls that it comes to, without writes, out: what it computes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from conformance.fuzz.program import Program, arguments, bound


@dataclass(frozen=True)
class Traced:
    """`results` are what it returns, and then each argument as it is afterwards."""

    graph: GraphModule
    arguments: Mapping[str, Node]
    results: tuple[Node, ...]


def traced(program: Program) -> Traced | None:
    """The program at the first of its sizes; None if torch cannot trace it."""
    tensors = arguments(program, program.points[0])
    call = torch.func.functionalize(bound(program, program.points[0]))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            graph = make_fx(call, decomposition_table=dict(core_aten_decompositions()))(*tensors.values())
    except Exception:  # whatever it is: nothing is known of the program then
        return None
    nodes = list(graph.graph.nodes)
    inputs = dict(zip(tensors, (n for n in nodes if n.op == "placeholder"), strict=True))
    written = {n.args[0]: n for n in nodes if n.op == "call_function" and name_of(n) == "copy_"}
    made = nodes[-1].args[0]
    results = made if isinstance(made, tuple | list) else (made,)
    return Traced(graph, inputs, (*results, *(written.get(node, node) for node in inputs.values())))


def name_of(node: Node) -> str:
    """The name of a call, without its overload."""
    target = node.target
    return str(target.overloadpacket.__name__ if isinstance(target, OpOverload) else getattr(target, "__name__", ""))


def given(node: Node) -> dict[str, Any]:
    """The arguments of a call by name, those not given as they are by default."""
    assert isinstance(node.target, OpOverload)
    known = {arg.name: arg.default_value for arg in node.target._schema.arguments if arg.has_default_value()}
    names = [arg.name for arg in node.target._schema.arguments]
    return known | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def operands_of(node: Node) -> list[Node]:
    """The values that a call takes, in order, as often as they stand there."""
    return nodes_in((node.args, node.kwargs))


def nodes_in(argument: Any) -> list[Node]:
    """The values in an argument, which may be a list."""
    found: list[Node] = []
    map_arg(argument, lambda x: found.append(x))
    return found


ABSENT = torch.empty(0, dtype=torch.bool)  # in the place of a result that a call does not give


def values_of(node: Node) -> list[Tensor]:
    """What a node gives."""
    made = node.meta["val"]
    return [ABSENT if x is None else x for x in made] if isinstance(made, tuple | list) else [made]


def shapes_of(node: Node) -> list[tuple[int, ...]]:
    """The shapes of what a node gives."""
    return [tuple(x.shape) for x in values_of(node)]
