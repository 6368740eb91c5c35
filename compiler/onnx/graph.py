"""Convert ONNX models to Torch IR, with the values of their weights.

Nodes run in order, each as the torch calls of its row; values that depend on no input are computed at compile time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from compiler import frontend
from compiler.errors import CompilerError, Undetermined, Unsupported
from compiler.frontend import Captured
from compiler.onnx import model as models
from compiler.onnx.model import Model, Sizes, library
from compiler.onnx.ops import ROWS
from compiler.onnx.ops.row import Row, is_known

Value = Any  # a tensor, a list of tensors for a sequence, None for an omitted value
Attributes = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """Op versions by domain, the attributes of the function that is being run, and values by name."""

    opsets: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # the input names of the current node

    def run(self, proto: Any, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a subgraph in this scope."""
        return subgraph(proto, self, dict(zip((i.name for i in proto.input), inputs, strict=True)))


def run(model: Model, values: Mapping[str, torch.Tensor]) -> Any:
    """The outputs of a model for its inputs, in torch calls."""
    outputs = subgraph(model.proto.graph, Scope(model.opsets), {**model.weights, **values})
    # Known results are copied, so that each is a tensor of its own.
    return pytree.tree_map(lambda x: x if isinstance(x, FakeTensor) else x.clone(), outputs)


def subgraph(proto: Any, outer: Scope, values: dict[str, Value]) -> list[Value]:
    """The outputs of a graph, which also sees the values of the outer scope."""
    weights = {i.name: models.tensor(i) for i in proto.initializer if i.name not in values}
    scope = Scope(outer.opsets, outer.attributes, {**outer.values, **weights, **values})
    if proto.sparse_initializer:
        raise Unsupported("sparse initializer", (proto.sparse_initializer[0].values.name,), "only dense tensors")
    try:
        _run_nodes(proto.node, scope)
    except Undetermined as problem:
        raise _with_graph_inputs(problem, proto.node) from problem
    return [scope.values[o.name] for o in proto.output]


def _run_nodes(nodes: Sequence[Any], scope: Scope) -> None:
    for node in nodes:
        if unknown := [name for name in node.input if name and name not in scope.values]:
            raise CompilerError(f"no ONNX model: nothing before {_op_name(node)} is named {', '.join(unknown)}")
        inputs = [scope.values[name] if name else None for name in node.input]
        outputs = _run_node(node, inputs, scope)
        scope.values.update((name, x) for name, x in zip(node.output, outputs, strict=False) if name)


def _run_node(node: Any, inputs: list[Value], scope: Scope) -> Sequence[Value]:
    node = _resolve_references(node, scope)
    schema = _schema(node, scope)
    attributes = {a.name: _attribute_value(a) for a in node.attribute}
    defaults = {n: _attribute_value(a.default_value) for n, a in schema.attributes.items() if a.default_value.name}
    row = ROWS.get(f"{node.op_type}-{schema.since_version}") or ROWS.get(node.op_type)
    if node.domain not in ("", "ai.onnx") or row is None:
        return _run_definition(node, inputs, scope, schema)
    inputs, attributes = _attributes_to_inputs(node, inputs, attributes, row)
    formal_inputs = schema.inputs
    if formal_inputs and formal_inputs[-1].option != schema.FormalParameterOption.Variadic:
        inputs = [*inputs, *[None] * (len(formal_inputs) - len(inputs))]
    try:
        return _call_row(row, node, inputs, attributes, defaults, scope)
    except CompilerError:
        raise
    except Exception as problem:  # whatever torch raises for arguments that it does not accept
        message = (str(problem).strip().splitlines() or [""])[0]
        raise Unsupported(
            _op_name(node), _type_texts(inputs), f"{type(problem).__name__}: {message}", attributes
        ) from problem


def _call_row(
    row: Row, node: Any, inputs: list[Value], attributes: Attributes, defaults: Attributes, scope: Scope
) -> Sequence[Value]:
    for name in sorted(set(attributes) - row.attributes):
        if attributes[name] != defaults.get(name):
            raise Unsupported(_op_name(node), _type_texts(inputs), f"attribute {name}", attributes)
    arguments = {n: v for n, v in {**defaults, **attributes}.items() if n in row.attributes}
    arguments |= {"scope": replace(scope, names=tuple(node.input))} if "scope" in row.attributes else {}
    arguments |= {"outputs": [bool(name) for name in node.output]} if "outputs" in row.attributes else {}
    for position in row.constants:
        if position < len(inputs) and not is_known(inputs[position]):
            raise Undetermined(
                _op_name(node), _type_texts(inputs), _formal_name(node, position), [node.input[position]]
            )
    if row.static or (all(map(is_known, inputs)) and "scope" not in row.attributes):
        with _disable_current_modes():
            outputs = row.function(*_row_arguments(row, inputs), **arguments)
    else:
        outputs = row.function(*_row_arguments(row, inputs), **arguments)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _row_arguments(row: Row, inputs: list[Value]) -> list[Value]:
    """The arguments of a row; those that must be known as Python numbers."""
    as_numbers = () if row.as_tensors else row.constants
    with _disable_current_modes():
        return [x.tolist() if n in as_numbers and x is not None else x for n, x in enumerate(inputs)]


def _schema(node: Any, scope: Scope) -> Any:
    onnx = library()
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        return onnx.defs.get_schema(node.op_type, scope.opsets.get(domain, 1), domain)
    except Exception as problem:
        raise Unsupported(
            _op_name(node), node.input, f"opset {scope.opsets.get(domain)} of onnx has no such op"
        ) from problem


def _attributes_to_inputs(
    node: Any, inputs: list[Value], attributes: Attributes, row: Row
) -> tuple[list[Value], Attributes]:
    """Move attributes of older op versions that are inputs in the newest one to the inputs."""
    if not attributes:
        return inputs, attributes
    input_names = [i.name for i in library().defs.get_schema(node.op_type, "").inputs]
    moved_attributes = {name: v for name, v in attributes.items() if name in input_names and name not in row.attributes}
    if not moved_attributes:
        return inputs, attributes
    with _disable_current_modes():
        moved_values = {input_names.index(name): torch.tensor(v) for name, v in moved_attributes.items()}
    length = max(len(inputs), *(n + 1 for n in moved_values))
    inputs = [*inputs, *[None] * (length - len(inputs))]
    return [moved_values.get(n, x) for n, x in enumerate(inputs)], {
        n: v for n, v in attributes.items() if n not in moved_attributes
    }


def _run_definition(node: Any, inputs: list[Value], scope: Scope, schema: Any) -> Sequence[Value]:
    """Run an op without a row by ONNX's own definition; raises Unsupported if there is none."""
    onnx = library()
    version = scope.opsets.get("" if node.domain == "ai.onnx" else node.domain, 1)
    proto = None
    if versions := [v for v in schema.function_opset_versions if v <= version]:
        proto = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(versions)))
    elif versions := [v for v in schema.context_dependent_function_opset_versions if v <= version]:
        type_protos = [b"" if x is None else _type_proto(onnx, x).SerializeToString() for x in inputs]
        definition = schema.get_context_dependent_function_with_opset_version(
            max(versions), node.SerializeToString(), type_protos
        )
        proto = onnx.FunctionProto.FromString(definition) if definition else None
    if proto is None:
        raise Unsupported(_op_name(node), _type_texts(inputs), "no row for this op")
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}
    attributes = defaults | {a.name: a for a in node.attribute}
    opsets = {**scope.opsets, **{o.domain: o.version for o in proto.opset_import}}
    values = dict(zip(proto.input, [*inputs, *[None] * (len(proto.input) - len(inputs))], strict=False))
    inner = Scope(opsets, attributes, values)
    try:
        _run_nodes(proto.node, inner)
    except Undetermined as problem:
        outer_name_of = dict(zip(proto.input, node.input, strict=False))
        outer_names = [
            outer_name_of[name] for name in _with_graph_inputs(problem, proto.node).inputs if name in outer_name_of
        ]
        raise Undetermined(_op_name(node), _type_texts(inputs), problem.what, outer_names) from problem
    return [inner.values.get(name) for name in proto.output]  # unused outputs may be missing


def _with_graph_inputs(problem: Undetermined, nodes: Sequence[Any]) -> Undetermined:
    """The same error with the graph inputs that the values in question depend on."""
    producers = {name: node for node in nodes for name in node.output}
    graph_inputs: dict[str, None] = {}
    pending = list(problem.inputs)
    seen = set(pending)
    while pending:
        name = pending.pop()
        if name not in producers:
            graph_inputs[name] = None
            continue
        operands = (
            [n for n in producers[name].input if n and n not in seen] if producers[name].op_type != "Shape" else []
        )
        seen.update(operands)
        pending += operands
    return Undetermined(problem.op, [problem.args_text], problem.what, sorted(graph_inputs))


def _type_proto(onnx: Any, value: Value) -> Any:
    if not isinstance(value, torch.Tensor):
        raise Unsupported("a sequence", (), "is an argument of a function")
    return onnx.helper.make_tensor_type_proto(models.type_number(value.dtype), list(value.shape))


def _resolve_references(node: Any, scope: Scope) -> Any:
    """A node with its attribute references replaced by the attributes of the enclosing function's node."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = library().NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            copy.attribute.append(a)
        elif a.ref_attr_name in scope.attributes:
            copy.attribute.append(scope.attributes[a.ref_attr_name])
            copy.attribute[-1].name = a.name
    return copy


def _attribute_value(attribute: Any) -> Any:
    value = library().helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str | int | float) and hasattr(value, "__iter__"):
        return [x.decode() if isinstance(x, bytes) else x for x in value]
    return value


def _op_name(node: Any) -> str:
    return f"{node.domain or 'onnx'}.{node.op_type}"


def _formal_name(node: Any, position: int) -> str:
    formal_inputs = library().defs.get_schema(node.op_type, node.domain).inputs
    return str(formal_inputs[min(position, len(formal_inputs) - 1)].name)


def _type_texts(inputs: Sequence[Value]) -> list[str]:
    return ["None" if x is None else _type_text(x) for x in inputs]


def _type_text(value: Value) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"[{', '.join(map(_type_text, value))}]" if isinstance(value, list) else str(value)


EMPTY: Mapping[str, Any] = {}


def from_onnx(
    model: Any, shapes: Sizes = EMPTY, known: Mapping[str, torch.Tensor] = EMPTY, device: str = "cpu"
) -> Captured:
    """Import an ONNX model (a ModelProto, its bytes or a file) as Torch IR, with its weights on `device`.

    `shapes` gives the shapes of inputs whose sizes the model leaves open. `known` gives the values of inputs that are
    constant, which are then not inputs of the program; shapes and axes, which ONNX allows as inputs, must be constant.
    Inputs of the program must be on `device`.

    Raises Unsupported for ops, element types and shapes that are not supported, Undetermined if a shape or attribute
    depends on inputs that are not constant, and CompilerError if `model` is not an ONNX model.
    """
    source = models.read(model)
    known = dict(known)
    input_shapes = models.input_shapes(source, {**{n: tuple(v.shape) for n, v in known.items()}, **shapes})
    program_inputs = [i for i in source.inputs if i.name not in known]
    names = [i.name for i in program_inputs]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [torch.empty(input_shapes[i.name], dtype=i.dtype) for i in program_inputs]

    structures: list[pytree.TreeSpec] = []

    def run_flat(*tensors: torch.Tensor) -> list[Any]:
        leaves, structure = pytree.tree_flatten(run(source, {**known, **dict(zip(names, tensors, strict=True))}))
        structures.append(structure)
        return leaves

    try:
        with torch.no_grad(), mode:
            graph = make_fx(run_flat, decomposition_table=frontend.decompositions(), pre_dispatch=True)(*fakes)
    except Undetermined as problem:
        inputs = [name for name in names if name in problem.inputs]  # only inputs that are not constant
        raise Undetermined(problem.op, [problem.args_text], problem.what, inputs) from problem
    graph = frontend.expand(_without_constant_copies(graph))
    weight_names = {id(x): name for name, x in source.weights.items()}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            node.name = weight_names.get(id(getattr(graph, node.target)), node.name)
    converted = frontend.convert(graph, names, name=_identifier(source.proto.graph.name))
    constants = {name: x.to(device) for name, x in converted.constants.items()}
    return Captured(converted.program, constants, converted.names, structures[0])


_COPIES = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.detach_.default)


def _without_constant_copies(graph: GraphModule) -> GraphModule:
    """Remove the copies of constants that a trace makes; nothing changes a constant."""
    for node in list(graph.graph.nodes):
        if node.target in _COPIES and node.args[0].op == "get_attr":
            node.args[0].meta = node.meta
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    return graph


def _identifier(text: str) -> str:
    identifier = "".join(c if c.isalnum() and c.isascii() else "_" for c in text)
    return identifier if identifier.isidentifier() else "f"
