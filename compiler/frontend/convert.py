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
from compiler.frontend.types import OURS, tensor_type
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

    `taken` has the positions of the placeholders that are inputs, `guards` the assumptions of torch about sizes beyond
    their ranges, and `symbols` maps torch's symbols to sizes.
    """

    program: Program
    constants: dict[str, torch.Tensor]
    inputs: tuple[str, ...]
    taken: tuple[int, ...]
    guards: tuple[Guard, ...]
    symbols: Symbols


def convert(
    graph: GraphModule,
    wanted: Sequence[str] = (),
    constants: Mapping[int, torch.Tensor] = {},
    name: str = "f",
    ranges: Mapping[Any, Any] = {},
    into: Sequence[str] = (),
    placed: bool = False,
) -> Converted:
    """Convert a functional ATen graph, whose nodes carry example values, to Torch IR.

    `wanted` are names for its placeholders, `constants` the known values of some, by position. Placeholders that are
    not tensors are left out: torch has specialised the graph to their values, or they are sizes of tensors. A size that
    no tensor has becomes the size of an extra, unread input, with strides of 0, at the position of the number. `ranges`
    are the ranges of symbolic sizes, by torch's symbol. `into` has, for each result, the name in `wanted` that it may
    overwrite, or "". With `placed`, each input has the storage offset of its example, as far as `offsets` tells.

    Raises Unsupported for whatever Torch IR cannot represent.
    """
    reader = _Reader(graph, Symbols(ranges), placed)
    placeholders = graphs.placeholders(graph)
    names = [reader.bind(n, wanted[k] if k < len(wanted) else n.name) for k, n in enumerate(placeholders)]
    taken = {
        position: Input(own, tensor_type(example, reader.symbols.size), position in constants)
        for position, (own, node) in enumerate(zip(names, placeholders, strict=True))
        if (example := _tensor(node)) is not None
    }
    held: list[Input] = []
    values = {names[position]: value for position, value in constants.items()}
    calls: list[Call] = []
    outputs: tuple[str, ...] = ()
    for node in graph.graph.nodes:
        match node.op:
            case "call_function":
                calls += reader.call(node)
            case "get_attr":
                value = operator.attrgetter(node.target)(graph)
                own = reader.bind(node, node.name)
                if isinstance(value, torch.Tensor):
                    held.append(Input(own, tensor_type(value), True))
                    values[own] = value.detach()
            case "output":
                results = pytree.tree_leaves(node.args)
                outputs = tuple(reader.result(n) for n in results if isinstance(n, Node))
            case "placeholder":
                pass
            case _:
                raise Unsupported(f"{node.op} {node.target}", (), "not a call of an ATen op")
    sizes = tuple(reader.symbols.sizes.values())
    for s in unbound(sizes, [(i.name, i.type.shape) for i in taken.values()]):
        position = next((k for k, n in enumerate(placeholders) if reader.is_size(n, s)), None)
        if position is None:
            raise Unsupported("symbolic size", (s.name,), "is not by itself a size of an input")
        taken[position] = Input(names[position], Type(u8, (s,), (const(0),)))
    inputs = [*(i for _, i in sorted(taken.items())), *held]
    program = Program(name, tuple(inputs), _used(calls, outputs), outputs, sizes)
    program = program.replace(into=_places(program, dict(zip(wanted, names, strict=False)), into))
    aten.verify(program)
    return Converted(program, values, tuple(names), tuple(sorted(taken)), reader.symbols.guards(), reader.symbols)


def _tensor(placeholder: Node) -> torch.Tensor | None:
    """The example of an input that is a tensor, else None; raises Unsupported for a symbolic float or bool."""
    example = placeholder.meta.get("val")
    if isinstance(example, torch.SymFloat | torch.SymBool):
        raise Unsupported("symbolic number", (placeholder.name,), "numbers must be known when compiling, but for sizes")
    return example if isinstance(example, torch.Tensor) else None


def _places(program: Program, names: Mapping[str, str], into: Sequence[str]) -> tuple[str, ...]:
    """For each output, the input of the same type that it may overwrite, or ""; empty if there is none at all."""
    known = aten.types(program)
    found = [
        names[name] if name and known[names[name]].replace(strides=()) is known[out].replace(strides=()) else ""
        for name, out in zip(into, program.outputs, strict=False)
    ]
    return tuple(found) if any(found) else ()


# Calls that address memory by strides, and the position of their argument `storage_offset`.
_STRIDED = {torch.ops.aten.as_strided.default: 3, torch.ops.aten.as_strided_scatter.default: 4}


def offsets(graph: GraphModule) -> dict[str, int]:
    """Known storage offsets of placeholders whose memory a call addresses by an absolute offset, by name.

    What such a call reads depends on where the input begins, which torch does not check before each call.
    """
    strided = [
        (n, last) for op, last in _STRIDED.items() for n in graph.graph.find_nodes(op="call_function", target=op)
    ]
    absolute = [n for n, last in strided if len(n.args) > last or n.kwargs.get("storage_offset") is not None]
    bases = {n.args[0].meta["val"].untyped_storage()._cdata for n in absolute}
    inside: dict[str, Any] = {n.name: n.meta.get("val") for n in graphs.placeholders(graph)} if bases else {}
    found = {
        name: x.storage_offset() for name, x in inside.items()
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and x.untyped_storage()._cdata in bases
    }  # fmt: skip
    return {name: n for name, n in found.items() if isinstance(n, int)}


class _Reader:
    """Converts the calls of one graph; `names` has the program's name for each node."""

    def __init__(self, graph: GraphModule, symbols: Symbols, placed: bool) -> None:
        self.graph = graph
        self.placed = placed
        self.names: dict[Node, str] = {}
        self.taken: set[str] = set(_RESERVED)
        self.symbols = symbols
        symbols.taken = self.taken

    def result(self, node: Node) -> str:
        if isinstance(node.meta.get("val"), _SYMBOLIC):
            raise Unsupported("symbolic size", (node.name,), "is a result, but only tensors can be")
        return self.names[node]

    def is_size(self, node: Node, size: Size) -> bool:
        """Whether a node is a number equal to this size; the hint must be positive."""
        n = node.meta.get("val")
        return isinstance(n, torch.SymInt) and self.symbols.sizes.get(n.node.expr) is size and size.hint > 0

    def bind(self, node: Node, wanted: str) -> str:
        clean = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "x"
        clean = clean if clean.isidentifier() else f"x{clean}"
        self.names[node] = fresh(clean, self.taken)
        return self.names[node]

    def call(self, node: Node) -> list[Call]:
        if node.target is operator.getitem or str(node.target) in IGNORED:
            return []
        op = node.target
        if isinstance(node.meta.get("val"), _SYMBOLIC):  # a size; its expression is inlined where it is used
            if isinstance(op, OpOverload):
                self.refuse_effects(op, node)
            return []
        if str(op) in ASSERTIONS:
            return [Call((), (), str(op), tuple(self.argument(a, node) for a in node.args), ())]
        if not isinstance(op, OpOverload):
            raise Unsupported(str(getattr(op, "__name__", op)), self.shown(node), "not an ATen op")
        self.refuse_effects(op, node)
        value = node.meta.get("val")
        if isinstance(value, tuple | list):
            taken = [n for n in node.users if n.target is operator.getitem and n.users]
            parts = {n.args[1]: n for n in reversed(taken)}
            names = tuple(
                self.bind(parts.get(i, node), parts[i].name if i in parts else f"{node.name}_{i}")
                for i in range(len(value))
            )
            self.names |= {n: self.names[parts[n.args[1]]] for n in taken}  # several nodes may select the same result
            kinds = tuple(self.kind(v, node) if i in parts else None for i, v in enumerate(value))
        else:
            names, kinds = (self.bind(node, node.name),), (self.kind(value, node),)
        args = tuple(self.argument(a, node) for a in node.args)
        kwargs = tuple((k, self.argument(a, node)) for k, a in node.kwargs.items() if not self.is_placement(k, a, node))
        if op in _STRIDED:
            args, kwargs = self.relative(args, dict(kwargs), node, _STRIDED[op]), ()
        origin = str(node.meta.get(ORIGIN) or op)
        return [Call(names, kinds, str(op), args, kwargs, "" if origin == str(op) else origin)]

    def relative(self, args: tuple[Any, ...], kwargs: dict[str, Any], node: Node, last: int) -> tuple[Any, ...]:
        """Arguments whose `storage_offset`, the last one, counts from the first element of the tensor.

        The offset as given counts from the beginning of the memory, of which an input may be any part.
        """
        base = node.args[0].meta["val"]  # type: ignore[union-attr]
        given = args[last] if len(args) > last else kwargs.get("storage_offset")
        if given is None or given == base.storage_offset():
            return args[:last]
        memory = base.untyped_storage()._cdata
        outer = [n.meta.get("val") for n in self.graph.graph.nodes if n.op in ("placeholder", "get_attr")]
        inside = any(x.untyped_storage()._cdata == memory for x in outer if isinstance(x, torch.Tensor))
        if inside and not self.placed:
            raise Unsupported(str(node.target), self.shown(node), "an offset into memory that an input is part of")
        if not isinstance(given, int) or not isinstance(base.storage_offset(), int) or given < base.storage_offset():
            raise Unsupported(str(node.target), self.shown(node), "an offset before the elements of the tensor")
        return (*args[:last], given - base.storage_offset())

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
            raise Unsupported(str(op), self.shown(node), why)

    def kind(self, value: object, node: Node) -> Type:
        if not isinstance(value, torch.Tensor):
            raise Unsupported(str(node.target), self.shown(node), f"gives a {type(value).__name__}, not a tensor")
        try:
            return tensor_type(value, self.symbols.size)
        except Unsupported as problem:
            raise Unsupported(str(node.target), self.shown(node), f"{problem.op}: {problem.why}") from problem

    def is_placement(self, key: str, value: object, node: Node) -> bool:
        """Whether an argument only says where a new tensor is stored. Raises Unsupported for an unusual layout."""
        if key == "layout" and value not in (None, torch.strided):
            raise Unsupported(str(node.target), self.shown(node), f"layout={value}")
        return key in ("device", "layout", "pin_memory")

    def argument(self, value: object, node: Node) -> object:
        match value:
            case Node() if isinstance(value.meta.get("val"), torch.SymInt):
                return self.whole(value.meta["val"])
            case Node() if isinstance(value.meta.get("val"), torch.SymFloat):
                return self.number(value, node)
            case Node() if isinstance(value.meta.get("val"), torch.SymBool):
                raise Unsupported(str(node.target), self.shown(node), f"{value} is a condition that depends on a size")
            case Node():
                return Ref(self.names[value])
            case torch.SymInt():
                return self.whole(value)
            case list() | tuple():
                return tuple(self.argument(v, node) for v in value)
            case torch.dtype() if value in OURS:
                return OURS[value]
            case torch.memory_format():
                return str(value).removeprefix("torch.")
            case None | bool() | int() | float() | str():
                return value
        raise Unsupported(str(node.target), self.shown(node), f"argument {value} of type {type(value).__name__}")

    def number(self, value: Node, node: Node) -> Expr | float:
        """A floating-point number computed from sizes; a plain float if these are known."""
        try:
            e = self.symbols.number(value.meta["val"])
            return float(e.value) if isinstance(e, Const) else e
        except Unsupported as problem:
            why = f"{value} is a number that depends on a size: {problem.why}"
            raise Unsupported(str(node.target), self.shown(node), why) from problem

    def whole(self, n: Any) -> Expr | int:
        e = self.symbols.size(n)
        return int(e.value) if isinstance(e, Const) else e

    def shown(self, node: Node) -> list[str]:
        def show(a: object) -> str:
            value = a.meta.get("val") if isinstance(a, Node) else None
            if isinstance(value, torch.Tensor):
                return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
            return f"[{', '.join(map(show, a))}]" if isinstance(a, list | tuple) else str(a)

        return [show(a) for a in node.args] + [f"{k}={show(a)}" for k, a in node.kwargs.items()]


def _used(calls: list[Call], outputs: tuple[str, ...]) -> tuple[Call, ...]:
    """The calls that outputs depend on, and assertions. Results that nobody reads lose their types."""
    wanted = set(outputs)
    kept: list[Call] = []
    for call in reversed(calls):
        if wanted & set(call.outputs) or call.op in ASSERTIONS:
            kinds = tuple(t if n in wanted else None for n, t in zip(call.outputs, call.types, strict=True))
            kept.append(call.replace(types=kinds))
            wanted |= set(aten.reads(call))
    return tuple(reversed(kept))
