"""Convert functional ATen graphs, whose nodes carry example values, to Torch IR."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from compiler.errors import Unsupported
from compiler.frontend import graphs
from compiler.frontend.decompose import IGNORED, ORIGIN
from compiler.frontend.symbols import Guard, Symbols
from compiler.frontend.types import IR_DTYPES, tensor_type
from compiler.ir import aten
from compiler.ir.aten import Call, Input, Program, Ref, Type
from compiler.ir.dtype import DTYPES, u8
from compiler.ir.expr import Const, Expr, Size, const, fresh
from compiler.ir.sizes import unbound
from compiler.passes.torch_to_tensor.lower import ASSERTIONS, RULES

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_RESERVED = {*DTYPES, *keyword.kwlist, "inf", "nan", "size", "constant"}


@dataclass(frozen=True)
class Converted:
    """A program, the values of its constant inputs, and the program's name for each placeholder of the graph.

    `input_positions` has the positions of the placeholders that are inputs, `guards` the assumptions of torch about
    sizes beyond their ranges, and `symbols` maps torch's symbols to sizes.
    """

    program: Program
    constants: dict[str, torch.Tensor]
    names: tuple[str, ...]
    input_positions: tuple[int, ...]
    guards: tuple[Guard, ...]
    symbols: Symbols


def convert(
    graph: GraphModule,
    placeholder_names: Sequence[str] = (),
    constants: Mapping[int, torch.Tensor] = {},
    name: str = "f",
    ranges: Mapping[Any, Any] = {},
    into: Sequence[str] = (),
    with_offsets: bool = False,
) -> Converted:
    """Convert a functional ATen graph, whose nodes carry example values, to Torch IR.

    `placeholder_names` are names for its placeholders, `constants` the known values of some, by position. Placeholders
    that are not tensors are left out: torch has specialised the graph to their values, or they are sizes of tensors. A
    size that no tensor has becomes the size of an extra, unread input, with strides of 0, at the position of the
    number. `ranges` are the ranges of symbolic sizes, by torch's symbol. `into` has, for each result, the name in
    `placeholder_names` that it may overwrite, or "". With `with_offsets`, each input has the storage offset of its
    example, as far as `offsets` tells.

    Raises Unsupported for whatever Torch IR cannot represent.
    """
    reader = _Reader(graph, Symbols(ranges), with_offsets)
    placeholders = graphs.placeholders(graph)
    input_names = [
        reader.bind(n, placeholder_names[k] if k < len(placeholder_names) else n.name)
        for k, n in enumerate(placeholders)
    ]
    inputs_at = {
        position: Input(input_name, tensor_type(example, reader.symbols.size), position in constants)
        for position, (input_name, node) in enumerate(zip(input_names, placeholders, strict=True))
        if (example := _tensor_example(node)) is not None
    }
    constant_inputs: list[Input] = []
    constant_values = {input_names[position]: value for position, value in constants.items()}
    calls: list[Call] = []
    outputs: tuple[str, ...] = ()
    for node in graph.graph.nodes:
        match node.op:
            case "call_function":
                calls += reader.convert_call(node)
            case "get_attr":
                value = operator.attrgetter(node.target)(graph)
                input_name = reader.bind(node, node.name)
                if isinstance(value, torch.Tensor):
                    constant_inputs.append(Input(input_name, tensor_type(value), True))
                    constant_values[input_name] = value.detach()
            case "output":
                results = pytree.tree_leaves(node.args)
                outputs = tuple(reader.result_name(n) for n in results if isinstance(n, Node))
            case "placeholder":
                pass
            case _:
                raise Unsupported(f"{node.op} {node.target}", (), "not a call of an ATen op")
    sizes = tuple(reader.symbols.sizes.values())
    for s in unbound(sizes, [(i.name, i.type.shape) for i in inputs_at.values()]):
        position = next((k for k, n in enumerate(placeholders) if reader.is_size(n, s)), None)
        if position is None:
            raise Unsupported("symbolic size", (s.name,), "is not by itself a size of an input")
        inputs_at[position] = Input(input_names[position], Type(u8, (s,), (const(0),)))
    inputs = [*(i for _, i in sorted(inputs_at.items())), *constant_inputs]
    program = Program(name, tuple(inputs), _live_calls(calls, outputs), outputs, sizes)
    program = program.replace(
        into=_overwritten_inputs(program, dict(zip(placeholder_names, input_names, strict=False)), into)
    )
    aten.verify(program)
    return Converted(
        program, constant_values, tuple(input_names), tuple(sorted(inputs_at)), reader.symbols.guards(), reader.symbols
    )


def _tensor_example(placeholder: Node) -> torch.Tensor | None:
    """The example of an input that is a tensor, else None; raises Unsupported for a symbolic float or bool."""
    example = placeholder.meta.get("val")
    if isinstance(example, torch.SymFloat | torch.SymBool):
        raise Unsupported("symbolic number", (placeholder.name,), "numbers must be known when compiling, but for sizes")
    return example if isinstance(example, torch.Tensor) else None


def _overwritten_inputs(program: Program, names: Mapping[str, str], into: Sequence[str]) -> tuple[str, ...]:
    """For each output, the input of the same type that it may overwrite, or ""; empty if there is none at all."""
    types = aten.types(program)
    overwritten = [
        names[name] if name and types[names[name]].replace(strides=()) is types[out].replace(strides=()) else ""
        for name, out in zip(into, program.outputs, strict=False)
    ]
    return tuple(overwritten) if any(overwritten) else ()


# Calls that address memory by strides, and the position of their argument `storage_offset`.
_STRIDED = {torch.ops.aten.as_strided.default: 3, torch.ops.aten.as_strided_scatter.default: 4}


def offsets(graph: GraphModule) -> dict[str, int]:
    """Known storage offsets of placeholders whose memory a call addresses by an absolute offset, by name.

    What such a call reads depends on where the input begins, which torch does not check before each call.
    """
    strided_calls = [
        (n, offset_position)
        for op, offset_position in _STRIDED.items()
        for n in graph.graph.find_nodes(op="call_function", target=op)
    ]
    absolute_calls = [
        n
        for n, offset_position in strided_calls
        if len(n.args) > offset_position or n.kwargs.get("storage_offset") is not None
    ]
    storages = {n.args[0].meta["val"].untyped_storage()._cdata for n in absolute_calls}
    examples: dict[str, Any] = {n.name: n.meta.get("val") for n in graphs.placeholders(graph)} if storages else {}
    known_offsets = {
        name: x.storage_offset() for name, x in examples.items()
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and x.untyped_storage()._cdata in storages
    }  # fmt: skip
    return {name: n for name, n in known_offsets.items() if isinstance(n, int)}


class _Reader:
    """Converts the calls of one graph; `names` has the program's name for each node."""

    def __init__(self, graph: GraphModule, symbols: Symbols, with_offsets: bool) -> None:
        self.graph = graph
        self.with_offsets = with_offsets
        self.names: dict[Node, str] = {}
        self.used_names: set[str] = set(_RESERVED)
        self.symbols = symbols
        symbols.used_names = self.used_names

    def result_name(self, node: Node) -> str:
        if isinstance(node.meta.get("val"), _SYMBOLIC):
            raise Unsupported("symbolic size", (node.name,), "is a result, but only tensors can be")
        return self.names[node]

    def is_size(self, node: Node, size: Size) -> bool:
        """Whether a node is a number equal to this size; the hint must be positive."""
        n = node.meta.get("val")
        return isinstance(n, torch.SymInt) and self.symbols.sizes.get(n.node.expr) is size and size.hint > 0

    def bind(self, node: Node, hint: str) -> str:
        identifier = "".join(c if c.isalnum() or c == "_" else "_" for c in hint) or "x"
        identifier = identifier if identifier.isidentifier() else f"x{identifier}"
        self.names[node] = fresh(identifier, self.used_names)
        return self.names[node]

    def convert_call(self, node: Node) -> list[Call]:
        if node.target is operator.getitem or str(node.target) in IGNORED:
            return []
        op = node.target
        if isinstance(node.meta.get("val"), _SYMBOLIC):  # a size; its expression is inlined where it is used
            if isinstance(op, OpOverload):
                self.refuse_effects(op, node)
            return []
        if str(op) in ASSERTIONS:
            return [Call((), (), str(op), tuple(self.convert_argument(a, node) for a in node.args), ())]
        if not isinstance(op, OpOverload):
            raise Unsupported(str(getattr(op, "__name__", op)), self.argument_texts(node), "not an ATen op")
        self.refuse_effects(op, node)
        value = node.meta.get("val")
        if isinstance(value, tuple | list):
            getitems = [n for n in node.users if n.target is operator.getitem and n.users]
            getitem_of = {n.args[1]: n for n in reversed(getitems)}
            names = tuple(
                self.bind(getitem_of.get(i, node), getitem_of[i].name if i in getitem_of else f"{node.name}_{i}")
                for i in range(len(value))
            )
            # Several nodes may select the same result.
            self.names |= {n: self.names[getitem_of[n.args[1]]] for n in getitems}
            types = tuple(self.type_of(v, node) if i in getitem_of else None for i, v in enumerate(value))
        else:
            names, types = (self.bind(node, node.name),), (self.type_of(value, node),)
        args = tuple(self.convert_argument(a, node) for a in node.args)
        kwargs = tuple(
            (k, self.convert_argument(a, node)) for k, a in node.kwargs.items() if not self.is_placement(k, a, node)
        )
        if op in _STRIDED:
            args, kwargs = self.with_relative_offset(args, dict(kwargs), node, _STRIDED[op]), ()
        origin = str(node.meta.get(ORIGIN) or op)
        return [Call(names, types, str(op), args, kwargs, "" if origin == str(op) else origin)]

    def with_relative_offset(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], node: Node, offset_position: int
    ) -> tuple[Any, ...]:
        """Arguments whose `storage_offset`, the last one, counts from the first element of the tensor.

        The offset as given counts from the beginning of the memory, of which an input may be any part.
        """
        base = node.args[0].meta["val"]  # type: ignore[union-attr]
        offset = args[offset_position] if len(args) > offset_position else kwargs.get("storage_offset")
        if offset is None or offset == base.storage_offset():
            return args[:offset_position]
        storage = base.untyped_storage()._cdata
        outer_values = [n.meta.get("val") for n in self.graph.graph.nodes if n.op in ("placeholder", "get_attr")]
        is_in_input = any(x.untyped_storage()._cdata == storage for x in outer_values if isinstance(x, torch.Tensor))
        if is_in_input and not self.with_offsets:
            raise Unsupported(
                str(node.target), self.argument_texts(node), "an offset into memory that an input is part of"
            )
        if not isinstance(offset, int) or not isinstance(base.storage_offset(), int) or offset < base.storage_offset():
            raise Unsupported(
                str(node.target), self.argument_texts(node), "an offset before the elements of the tensor"
            )
        return (*args[:offset_position], offset - base.storage_offset())

    def refuse_effects(self, op: OpOverload, node: Node) -> None:
        why = ""
        if graphs.mutates(node):
            why = "changes its argument in place"
        elif (
            torch.Tag.nondeterministic_seeded in op.tags and str(op) not in RULES
        ):  # a rule refuses the random cases itself
            why = "is random"
        elif torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
            why = "gives a result whose shape or value Python must see, so it depends on the data"
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not free_unbacked_symbols(value):
                why = ""
        if why:
            raise Unsupported(str(op), self.argument_texts(node), why)

    def type_of(self, value: object, node: Node) -> Type:
        if not isinstance(value, torch.Tensor):
            raise Unsupported(
                str(node.target), self.argument_texts(node), f"gives a {type(value).__name__}, not a tensor"
            )
        try:
            return tensor_type(value, self.symbols.size)
        except Unsupported as problem:
            raise Unsupported(str(node.target), self.argument_texts(node), f"{problem.op}: {problem.why}") from problem

    def is_placement(self, key: str, value: object, node: Node) -> bool:
        """Whether an argument only says where a new tensor is stored. Raises Unsupported for an unusual layout."""
        if key == "layout" and value not in (None, torch.strided):
            raise Unsupported(str(node.target), self.argument_texts(node), f"layout={value}")
        return key in ("device", "layout", "pin_memory")

    def convert_argument(self, value: object, node: Node) -> object:
        match value:
            case Node() if isinstance(value.meta.get("val"), torch.SymInt):
                return self.int_argument(value.meta["val"])
            case Node() if isinstance(value.meta.get("val"), torch.SymFloat):
                return self.float_argument(value, node)
            case Node() if isinstance(value.meta.get("val"), torch.SymBool):
                raise Unsupported(
                    str(node.target), self.argument_texts(node), f"{value} is a condition that depends on a size"
                )
            case Node():
                return Ref(self.names[value])
            case torch.SymInt():
                return self.int_argument(value)
            case list() | tuple():
                return tuple(self.convert_argument(v, node) for v in value)
            case torch.dtype() if value in IR_DTYPES:
                return IR_DTYPES[value]
            case torch.memory_format():
                return str(value).removeprefix("torch.")
            case None | bool() | int() | float() | str():
                return value
        raise Unsupported(
            str(node.target), self.argument_texts(node), f"argument {value} of type {type(value).__name__}"
        )

    def float_argument(self, value: Node, node: Node) -> Expr | float:
        """A floating-point number computed from sizes; a plain float if these are known."""
        try:
            e = self.symbols.number(value.meta["val"])
            return float(e.value) if isinstance(e, Const) else e
        except Unsupported as problem:
            why = f"{value} is a number that depends on a size: {problem.why}"
            raise Unsupported(str(node.target), self.argument_texts(node), why) from problem

    def int_argument(self, n: Any) -> Expr | int:
        e = self.symbols.size(n)
        return int(e.value) if isinstance(e, Const) else e

    def argument_texts(self, node: Node) -> list[str]:
        def show(a: object) -> str:
            value = a.meta.get("val") if isinstance(a, Node) else None
            if isinstance(value, torch.Tensor):
                return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
            return f"[{', '.join(map(show, a))}]" if isinstance(a, list | tuple) else str(a)

        return [show(a) for a in node.args] + [f"{k}={show(a)}" for k, a in node.kwargs.items()]


def _live_calls(calls: list[Call], outputs: tuple[str, ...]) -> tuple[Call, ...]:
    """The calls that outputs depend on, and assertions. Results that nobody reads lose their types."""
    live = set(outputs)
    kept: list[Call] = []
    for call in reversed(calls):
        if live & set(call.outputs) or call.op in ASSERTIONS:
            types = tuple(t if n in live else None for n, t in zip(call.outputs, call.types, strict=True))
            kept.append(call.replace(types=types))
            live |= set(aten.reads(call))
    return tuple(reversed(kept))
