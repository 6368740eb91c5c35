"""Trace a random program to a functionalised graph of core ATen calls."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from conformance.fuzz.program import Program, arguments, bind_numbers


@dataclass(frozen=True)
class Traced:
    """A traced program; `results` are the returned values, then the value of each argument after the call."""

    graph: GraphModule
    arguments: Mapping[str, Node]
    results: tuple[Node, ...]


def trace_program(program: Program) -> Traced | None:
    """Trace the program at the first of its sizes; None if torch cannot trace it."""
    tensors = arguments(program, program.points[0])
    call = torch.func.functionalize(bind_numbers(program, program.points[0]))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            graph = make_fx(call, decomposition_table=_decompositions())(*tensors.values())
    except Exception:  # after any error, nothing is known about the program
        return None
    nodes = list(graph.graph.nodes)
    inputs = dict(zip(tensors, (n for n in nodes if n.op == "placeholder"), strict=True))
    written = {n.args[0]: n for n in nodes if n.op == "call_function" and name_of(n) == "copy_"}
    outputs = nodes[-1].args[0]
    results = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return Traced(graph, inputs, (*results, *(written.get(node, node) for node in inputs.values())))


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the table of decompositions, which takes torch long to make."""
    return dict(core_aten_decompositions())


def name_of(node: Node) -> str:
    """Return the name of a call, without its overload."""
    target = node.target
    return str(target.overloadpacket.__name__ if isinstance(target, OpOverload) else getattr(target, "__name__", ""))


def arguments_of(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by name, including defaults."""
    assert isinstance(node.target, OpOverload)
    defaults = {arg.name: arg.default_value for arg in node.target._schema.arguments if arg.has_default_value()}
    names = [arg.name for arg in node.target._schema.arguments]
    return defaults | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def operands_of(node: Node) -> list[Node]:
    """Return the operands of a call, in order and with repetitions."""
    return nodes_in((node.args, node.kwargs))


def nodes_in(argument: Any) -> list[Node]:
    """Return the nodes in an argument, which may be a list."""
    nodes: list[Node] = []
    map_arg(argument, lambda x: nodes.append(x))
    return nodes


ABSENT = torch.empty(0, dtype=torch.bool)  # stands for a result that is None


def values_of(node: Node) -> list[Tensor]:
    """Return the example tensors of a node's results."""
    values = node.meta["val"]
    return [ABSENT if x is None else x for x in values] if isinstance(values, tuple | list) else [values]


def shapes_of(node: Node) -> list[tuple[int, ...]]:
    """Return the shapes of a node's results."""
    return [tuple(x.shape) for x in values_of(node)]
