"""An ONNX model in; Torch IR out, with the values of its weights, as for a function of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from compiler import frontend
from compiler.errors import Undetermined
from compiler.frontend import Captured
from compiler.onnx import graph
from compiler.onnx import model as models
from compiler.onnx.model import Sizes

NOTHING: Mapping[str, Any] = {}


def from_onnx(
    model: Any, shapes: Sizes = NOTHING, known: Mapping[str, torch.Tensor] = NOTHING, device: str = "cpu"
) -> Captured:
    """A model, its bytes or its file as Torch IR, with its weights.

    `shapes` are those of inputs that the model leaves open, `known` the values of inputs that do not change: shapes and
    axes have to be known, and can be inputs in ONNX. What is known is no input of the program. Weights are on
    `device`, as inputs are to be.

    Raises Unsupported for ops, element types and shapes that are not compiled, CompilerError for what is no model.
    """
    read = models.read(model)
    known = dict(known)
    given = models.shapes(read, {**{n: tuple(v.shape) for n, v in known.items()}, **shapes})
    free = [i for i in read.inputs if i.name not in known]
    names = [i.name for i in free]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [torch.empty(given[i.name], dtype=i.dtype) for i in free]

    results: list[pytree.TreeSpec] = []

    def run(*tensors: torch.Tensor) -> list[Any]:
        leaves, structure = pytree.tree_flatten(graph.run(read, {**known, **dict(zip(names, tensors, strict=True))}))
        results.append(structure)
        return leaves

    try:
        with torch.no_grad(), mode:
            made = make_fx(run, decomposition_table=frontend.decompositions(), pre_dispatch=True)(*fakes)
    except Undetermined as problem:
        inputs = [name for name in names if name in problem.inputs]  # weights and what is known are not to blame
        raise Undetermined(problem.op, [problem.args_text], problem.what, inputs) from problem
    made = frontend.expand(_in_place(made))
    weights = {id(x): name for name, x in read.weights.items()}
    for node in made.graph.nodes:
        if node.op == "get_attr":
            node.name = weights.get(id(getattr(made, node.target)), node.name)
    converted = frontend.convert(made, names, name=_name(read.proto.graph.name))
    constants = {name: x.to(device) for name, x in converted.constants.items()}
    return Captured(converted.program, constants, converted.inputs, results[0])


_SAME = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.detach_.default)


def _in_place(graph: GraphModule) -> GraphModule:
    """Constants as they are: a trace copies each where it begins, and nothing changes one."""
    for node in list(graph.graph.nodes):
        if node.target in _SAME and node.args[0].op == "get_attr":
            node.args[0].meta = node.meta
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    return graph


def _name(text: str) -> str:
    clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in text)
    return clean if clean.isidentifier() else "f"
