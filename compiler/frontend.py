"""Capture: a PyTorch function or module and example inputs come in, Torch IR goes out, with the weights that it found.

No call in the result has a side effect or unknown sizes; calls that `torch_to_tensor` has a rule for are kept whole,
others are decomposed as torch would. `execute` runs Torch IR by PyTorch's eager kernels, which is what its calls mean.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram, default_decompositions, export
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from compiler.errors import CompilerError, Unsupported
from compiler.ir import aten
from compiler.ir.aten import Call, Input, Program, Ref, Type
from compiler.ir.dtype import DTYPES, DType
from compiler.ir.expr import dim
from compiler.passes.torch_to_tensor.lower import RULES

_TORCH = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
_OURS = {theirs: DTYPES[name] for name, theirs in _TORCH.items()}

# Calls that only check or record something, about the trace or about the data.
_IGNORED = {
    "aten._assert_tensor_metadata.default", "aten._log_api_usage_once.default", "aten._assert_async.default",
    "aten._assert_async.msg", "aten._assert_scalar.default", "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}  # fmt: skip
_RESERVED = {*DTYPES, *keyword.kwlist, "inf", "nan", "size", "constant"}
_COMPARISONS = {f"aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# What is stored is the scalar as the tensor's type has it.
_FILLS = {f"aten.{name}" for name in ("masked_fill.Scalar", "fill.Scalar", "scatter.value", "index_fill.int_Scalar")}

Decompositions = dict[OpOverload[Any, Any], Callable[..., Any]]


@dataclass(frozen=True)
class Captured:
    """A program, and how a call of the original function maps to it.

    `arguments` names the program's input for each tensor among the flattened arguments of the function; `constants`
    holds the values of its constant inputs; `structure` and `literals` (by position) rebuild what it returned.
    """

    program: Program
    constants: dict[str, torch.Tensor]
    arguments: tuple[str, ...]
    structure: pytree.TreeSpec
    literals: dict[int, object] = field(default_factory=dict)

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The function's result, from the values of the program's outputs."""
        values = iter(tensors)
        leaves = [self.literals[n] if n in self.literals else next(values) for n in range(self.structure.num_leaves)]
        return pytree.tree_unflatten(leaves, self.structure)


def torch_dtype(dtype: DType) -> torch.dtype:
    return _TORCH[dtype.name]


def our_dtype(dtype: torch.dtype) -> DType:
    """Our element type for torch's; raises Unsupported."""
    if dtype not in _OURS:
        raise Unsupported(str(dtype), (), f"the element types are {', '.join(_TORCH)}")
    return _OURS[dtype]


def tensor_type(t: torch.Tensor) -> Type:
    """The type of a tensor, real or fake; raises Unsupported for symbolic sizes."""
    if not all(isinstance(n, int) for n in (*t.shape, *t.stride())):
        raise Unsupported("symbolic size", (f"shape {tuple(t.shape)}",), "sizes must be known when compiling")
    if t.layout is not torch.strided:
        raise Unsupported(str(t.layout), (), "only dense tensors")
    return Type(our_dtype(t.dtype), tuple(map(dim, t.shape)), tuple(map(dim, t.stride())))


def capture(
    function: Callable[..., Any], inputs: Sequence[Any], constants: Sequence[int] = (), name: str = "f"
) -> Captured:
    """Trace `function(*inputs)`. Weights of modules, and tensors that the function closes over, become constant inputs.

    `constants` are positions in `inputs` that hold weights: those become constant inputs as well.
    """
    module = function if isinstance(function, torch.nn.Module) else _Function(function)
    # An alias of each tensor, so that one that is passed twice, or closed over as well, is not taken for one input.
    distinct = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tuple(inputs))
    exported = _export(module, distinct, function)
    spec = exported.graph_signature
    graph = _decompose(exported, spec)
    names = iter(_argument_names(function, inputs))
    wanted: list[str] = []
    values: dict[int, torch.Tensor] = {}
    arguments: list[int] = []
    weights = [position in constants for position, x in enumerate(inputs) for _ in pytree.tree_leaves(x)]
    leaves = iter(zip(pytree.tree_leaves(tuple(inputs)), weights, strict=True))
    for s in spec.input_specs:
        if s.kind is InputKind.USER_INPUT:
            leaf, weight = next(leaves)
            own = next(names)
            if isinstance(s.arg, TensorArgument):
                arguments.append(len(wanted))
                values |= {len(wanted): leaf} if weight else {}
            wanted.append(own or s.arg.name)
        else:
            values[len(wanted)] = _weight(exported, s.target or "")
            wanted.append(s.arg.name)
    made = convert(graph, wanted, values, name)
    outputs = [s.arg for s in spec.output_specs]
    literals = {n: getattr(a, "value", None) for n, a in enumerate(outputs) if not isinstance(a, TensorArgument)}
    assert exported.call_spec.out_spec is not None, "torch.export always gives the structure of the results"
    return Captured(
        made.program, made.constants, tuple(made.inputs[n] for n in arguments), exported.call_spec.out_spec, literals
    )


class _Function(torch.nn.Module):
    """A function as the module that `torch.export` asks for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _argument_names(function: Callable[..., Any], inputs: Sequence[Any]) -> list[str]:
    """A name for each leaf of the inputs: that of the parameter it is passed to, numbered if it is one of several."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except ValueError:  # a builtin says nothing about its parameters
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    out = []
    for position, value in enumerate(inputs):
        own = plain[position] if position < len(plain) else f"x{position}"
        leaves = pytree.tree_leaves(value)
        out += [own] if len(leaves) == 1 else [f"{own}_{n}" for n in range(len(leaves))]
    return out


def _export(module: torch.nn.Module, inputs: tuple[Any, ...], function: Callable[..., Any]) -> ExportedProgram:
    with torch.no_grad(), _silenced("torch._subclasses.fake_tensor"), _without_fast_path():
        try:
            return export(module, inputs, strict=False)
        except Exception as problem:  # whatever PyTorch raises for a program that it cannot run or trace
            what = getattr(function, "__qualname__", type(function).__name__)
            reason = str(problem).strip().split("\n\n")[0].split("\n")[0]
            raise CompilerError(f"torch.export cannot trace {what}: {type(problem).__name__}: {reason}") from problem


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Without what a logger of torch says about an error that we report ourselves."""
    logger = logging.getLogger(name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Transformer layers as their ops, not as the one op that they are in inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _weight(exported: ExportedProgram, target: str) -> torch.Tensor:
    value = exported.state_dict.get(target, exported.constants.get(target))
    if not isinstance(value, torch.Tensor):
        raise Unsupported(f"input {target!r}", (type(value).__name__,), "only tensors can be weights")
    return value.detach()


# Decomposition --------------------------------------------------------------------------------------------------------


@functools.cache
def decompositions() -> Decompositions:
    """Torch's own decompositions into core ATen, for the ops that have no rule here."""
    table: Decompositions = dict(default_decompositions())
    table[torch.ops.aten._transformer_encoder_layer_fwd.default] = _encoder_layer
    return {op: how for op, how in table.items() if str(op) not in RULES}


def _encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """What `nn.TransformerEncoderLayer` is in inference, as its ops."""
    if mask is not None:
        raise Unsupported("aten._transformer_encoder_layer_fwd.default", (), "has a mask")
    del mask_type

    def attended(x: torch.Tensor) -> torch.Tensor:
        heads = F.linear(x, qkv_weight, qkv_bias).view(*x.shape[:2], 3, num_heads, embed_dim // num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        made = F.scaled_dot_product_attention(query, key, value)
        return F.linear(made.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def fed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(norm_1(src))
        return x + fed_forward(norm_2(x))
    x = norm_1(src + attended(src))
    return norm_2(x + fed_forward(x))


def _decompose(exported: ExportedProgram, spec: Any) -> GraphModule:
    """The graph with nothing left that is decomposable and has no rule, and no update in place."""
    graph = exported.graph_module
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.detach_.default:  # of a fresh constant: nothing sees the difference
            node.target = torch.ops.aten.detach.default
    if not _updates(spec) and not any(_mutates(n) for n in graph.graph.nodes):
        graph = expand(graph)
        if not any(_mutates(n) for n in graph.graph.nodes):
            return graph
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own copying uses what torch deprecates
        functional = exported.run_decompositions(decompositions())
    updated = _updates(functional.graph_signature)
    if updated:
        raise Unsupported("in-place update", updated, "a program must leave its inputs and weights as they are")
    return expand(functional.graph_module)


def _updates(spec: Any) -> list[str]:
    """The inputs and weights that a program changes."""
    return [str(s.target) for s in spec.output_specs if s.kind is not OutputKind.USER_OUTPUT]


def _mutates(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def expand(graph: GraphModule) -> GraphModule:
    """Replace calls that have no rule by their decompositions, as long as there are any.

    Tracing the graph anew before dispatch is an order of magnitude faster than `run_decompositions`, which looks at
    every op that torch knows.
    """
    for _ in range(8):
        table = _expansions(graph)
        if not table:
            break
        placeholders = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        modes = [v.fake_mode for v in placeholders if isinstance(v, FakeTensor)]
        graph = retrace(graph, placeholders, modes[0] if modes else FakeTensorMode(), table)
    return graph


def retrace(
    graph: GraphModule, examples: Sequence[Any], mode: FakeTensorMode, table: Decompositions | None = None
) -> GraphModule:
    """The graph traced anew on fake examples; tensors that it holds stay what they are.

    While tracing those are inputs as well: only so are they traced like all else.
    """
    held = {n.target: operator.attrgetter(n.target)(graph) for n in graph.graph.nodes if n.op == "get_attr"}
    tensors = {name: t for name, t in held.items() if isinstance(t, torch.Tensor)}

    def run(*inputs: Any) -> Any:
        interpreter = _Holding(graph)
        interpreter.held = dict(zip(tensors, inputs[len(examples) :], strict=True))
        return interpreter.run(*inputs[: len(examples)])

    with torch.no_grad(), mode:
        fakes = [mode.from_tensor(t, static_shapes=True) for t in tensors.values()]
        made = make_fx(run, decomposition_table=table, pre_dispatch=True)(*examples, *fakes)
    placeholders = [n for n in made.graph.nodes if n.op == "placeholder"]
    for number, (node, value) in enumerate(zip(placeholders[len(examples) :], tensors.values(), strict=True)):
        made.register_buffer(f"held_{number}", value)
        with made.graph.inserting_before(node):
            own = made.graph.get_attr(f"held_{number}")
        own.meta = node.meta
        node.replace_all_uses_with(own)
        made.graph.erase_node(node)
    made.recompile()
    return made


class _Holding(Interpreter):
    """Runs a graph with other values for the tensors that it holds."""

    held: dict[Any, Any]

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.held[target] if target in self.held else super().get_attr(target, args, kwargs)


def _expansions(graph: GraphModule) -> Decompositions:
    """How to decompose what has no rule: by torch's table, or the op's own definition; empty if nothing is left."""
    called = {n.target for n in graph.graph.nodes if isinstance(n.target, OpOverload)}
    missing = {op for op in called if str(op) not in RULES and str(op) not in _IGNORED}
    table = decompositions()
    own: Decompositions = {
        op: functools.partial(_by_definition, op) for op in missing if op not in table and op._can_decompose()
    }
    return {**table, **own} if own or missing & table.keys() else {}


def _by_definition(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op.decompose(*args, **kwargs)


# From a graph of ATen calls to Torch IR -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Converted:
    """A program, the values of its constant inputs, and the program's name for each placeholder of the graph."""

    program: Program
    constants: dict[str, torch.Tensor]
    inputs: tuple[str, ...]


def convert(
    graph: GraphModule,
    wanted: Sequence[str] = (),
    constants: Mapping[int, torch.Tensor] = {},
    name: str = "f",
) -> Converted:
    """A functional ATen graph, whose nodes carry example values, as Torch IR.

    `wanted` are names for its placeholders, `constants` the known values of some, by position. Placeholders that are
    not tensors are left out: torch has specialised the graph to their values.
    """
    reader = _Reader(graph)
    inputs: list[Input] = []
    values: dict[str, torch.Tensor] = {}
    names: list[str] = []
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    for position, node in enumerate(placeholders):
        own = reader.bind(node, wanted[position] if position < len(wanted) else node.name)
        names.append(own)
        example = node.meta.get("val")
        if isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise Unsupported("symbolic size", (node.name,), "sizes must be known when compiling: use dynamic=False")
        if isinstance(example, torch.Tensor):
            inputs.append(Input(own, tensor_type(example), position in constants))
            values |= {own: constants[position]} if position in constants else {}
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
                    inputs.append(Input(own, tensor_type(value), True))
                    values[own] = value.detach()
            case "output":
                results = pytree.tree_leaves(node.args)
                outputs = tuple(reader.names[n] for n in results if isinstance(n, Node))
            case "placeholder":
                pass
            case _:
                raise Unsupported(f"{node.op} {node.target}", (), "not a call of an ATen op")
    program = Program(name, tuple(inputs), _used(calls, outputs), outputs)
    aten.verify(program)
    return Converted(program, values, tuple(names))


def from_graph(graph: GraphModule, constants: Mapping[int, torch.Tensor] = {}) -> Captured:
    """A graph of ATen calls that AOT Autograd or `make_fx` made, whose nodes carry example values.

    `constants` are the known values of some of its placeholders, by position. Decompose with `decompositions()` before.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    tensors = [position for position, n in enumerate(placeholders) if isinstance(n.meta.get("val"), torch.Tensor)]
    (output,) = (n for n in graph.graph.nodes if n.op == "output")
    leaves, structure = pytree.tree_flatten(output.args[0])
    literals = {n: leaf for n, leaf in enumerate(leaves) if not isinstance(leaf, Node)}
    made = convert(expand(graph), [n.name for n in placeholders], constants)
    return Captured(made.program, made.constants, tuple(made.inputs[n] for n in tensors), structure, literals)


class _Reader:
    """Reads the calls of one graph, with the names that its nodes have been given."""

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self.names: dict[Node, str] = {}
        self.taken: set[str] = set(_RESERVED)

    def bind(self, node: Node, wanted: str) -> str:
        clean = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "x"
        clean = clean if clean.isidentifier() else f"x{clean}"
        name, n = clean, 1
        while name in self.taken:
            name, n = f"{clean}_{n}", n + 1
        self.taken.add(name)
        self.names[node] = name
        return name

    def call(self, node: Node) -> list[Call]:
        if node.target is operator.getitem or str(node.target) in _IGNORED:
            return []
        op = node.target
        if not isinstance(op, OpOverload):
            raise Unsupported(str(getattr(op, "__name__", op)), self.shown(node), "not an ATen op")
        self.refuse_effects(op, node)
        value = node.meta.get("val")
        if isinstance(value, tuple | list):
            parts = {n.args[1]: n for n in node.users if n.target is operator.getitem}
            names = tuple(
                self.bind(parts.get(i, node), parts[i].name if i in parts else f"{node.name}_{i}")
                for i in range(len(value))
            )
            kinds = tuple(self.kind(v, node) if i in parts else None for i, v in enumerate(value))
        else:
            names, kinds = (self.bind(node, node.name),), (self.kind(value, node),)
        args = tuple(self.argument(a, node) for a in node.args)
        kwargs = tuple((k, self.argument(a, node)) for k, a in node.kwargs.items() if not self.is_placement(k, a, node))
        if op is torch.ops.aten.as_strided.default:
            args, kwargs = self.relative(args, dict(kwargs), node), ()
        return [Call(names, kinds, str(op), args, kwargs)]

    def relative(self, args: tuple[Any, ...], kwargs: dict[str, Any], node: Node) -> tuple[Any, ...]:
        """The arguments of `as_strided` without an offset that is that of the tensor itself.

        Another one counts from the beginning of the memory, of which an input may be any part.
        """
        base = node.args[0].meta["val"]  # type: ignore[union-attr]
        given = args[3] if len(args) > 3 else kwargs.get("storage_offset")
        if given is None or given == base.storage_offset():
            return args[:3]
        memory = base.untyped_storage()._cdata
        outer = [n.meta.get("val") for n in self.graph.graph.nodes if n.op in ("placeholder", "get_attr")]
        if base.storage_offset() or any(
            x.untyped_storage()._cdata == memory for x in outer if isinstance(x, torch.Tensor)
        ):
            raise Unsupported(str(node.target), self.shown(node), "an offset into memory that an input is part of")
        return (*args[:3], given)

    def refuse_effects(self, op: OpOverload, node: Node) -> None:
        why = ""
        if op._schema.is_mutable:
            why = "changes its argument in place"
        elif (
            torch.Tag.nondeterministic_seeded in op.tags and str(op) not in RULES
        ):  # a rule knows when it is not random
            why = "is random"
        elif torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
            why = "gives a result whose shape or value Python must see, so it depends on the data"
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape):
                why = ""
        if why:
            raise Unsupported(str(op), self.shown(node), why)

    def kind(self, value: object, node: Node) -> Type:
        if not isinstance(value, torch.Tensor):
            raise Unsupported(str(node.target), self.shown(node), f"gives a {type(value).__name__}, not a tensor")
        try:
            return tensor_type(value)
        except Unsupported as problem:
            raise Unsupported(str(node.target), self.shown(node), f"{problem.op}: {problem.why}") from problem

    def is_placement(self, key: str, value: object, node: Node) -> bool:
        """Where and how a new tensor is stored: not a matter of this IR, as long as it is ordinary."""
        if key == "layout" and value not in (None, torch.strided):
            raise Unsupported(str(node.target), self.shown(node), f"layout={value}")
        return key in ("device", "layout", "pin_memory")

    def argument(self, value: object, node: Node) -> object:
        match value:
            case Node():
                return Ref(self.names[value])
            case list() | tuple():
                return tuple(self.argument(v, node) for v in value)
            case torch.dtype() if value in _OURS:
                return _OURS[value]
            case torch.memory_format():
                return str(value).removeprefix("torch.")
            case None | bool() | int() | float() | str():
                return value
        raise Unsupported(str(node.target), self.shown(node), f"argument {value} of type {type(value).__name__}")

    def shown(self, node: Node) -> list[str]:
        def show(a: object) -> str:
            value = a.meta.get("val") if isinstance(a, Node) else None
            if isinstance(value, torch.Tensor):
                return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
            return f"[{', '.join(map(show, a))}]" if isinstance(a, list | tuple) else str(a)

        return [show(a) for a in node.args] + [f"{k}={show(a)}" for k, a in node.kwargs.items()]


def _used(calls: list[Call], outputs: tuple[str, ...]) -> tuple[Call, ...]:
    """The calls that outputs depend on; results that nobody reads lose their types."""
    wanted = set(outputs)
    kept: list[Call] = []
    for call in reversed(calls):
        if wanted & set(call.outputs):
            kinds = tuple(t if n in wanted else None for n, t in zip(call.outputs, call.types, strict=True))
            kept.append(call.replace(types=kinds))
            wanted |= set(aten.reads(call))
    return tuple(reversed(kept))


# Running Torch IR -----------------------------------------------------------------------------------------------------


def execute(
    program: Program, tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, ...]:
    """The program by PyTorch's eager kernels, one call after the other.

    With `dtype` (float64 for a reference), everything of a floating type is held in that type instead, the types that
    calls ask for included; scalars that tensors are compared with stay rounded to the original type of these.
    """
    if len(tensors) != len(program.inputs):
        raise CompilerError(f"{program.name} takes {len(program.inputs)} tensors, not {len(tensors)}")
    known = aten.types(program)
    env: dict[str, Any] = {i.name: _promoted(t, dtype) for i, t in zip(program.inputs, tensors, strict=True)}
    with torch.no_grad(), _default_dtype(dtype), torch.device(tensors[0].device if tensors else "cpu"):
        for call in program.calls:
            args = [_actual(a, env, dtype) for a in call.args]
            kwargs = {k: _actual(a, env, dtype, k) for k, a in call.kwargs}
            if dtype is not None:
                args = _faithful(call, args, known)
            result = resolve(call.op)(*args, **kwargs)
            results = result if isinstance(result, tuple | list) else (result,)
            env |= {n: _promoted(r, dtype) for n, r in zip(call.outputs, results, strict=True)}
    return tuple(env[name] for name in program.outputs)


def resolve(op: str) -> Callable[..., Any]:
    """PyTorch's function for a name such as `aten.add.Tensor`."""
    space, name, overload = op.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, space), name), overload)
    return found


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """What integers become when an op makes floating numbers of them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _promoted(value: Any, dtype: torch.dtype | None) -> Any:
    return (
        value.to(dtype)
        if dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
    )


def _actual(argument: object, env: Mapping[str, Any], dtype: torch.dtype | None, key: str = "") -> Any:
    match argument:
        case Ref(name):
            return env[name]
        case tuple():
            return [_actual(a, env, dtype) for a in argument]
        case DType():
            return dtype if dtype is not None and argument.is_float else torch_dtype(argument)
        case str() if key == "memory_format":
            return getattr(torch, argument)
    return argument


def _faithful(call: Call, args: list[Any], known: Mapping[str, Type]) -> list[Any]:
    """Arguments with which a call means in another floating type what it does in its own.

    What depends on the type is spelled out: the rounding of a scalar that is compared with, and defaults made of the
    type's greatest value or rounding unit.
    """
    first = call.args[0] if call.args else None
    own = torch_dtype(known[first.name].dtype) if isinstance(first, Ref) else torch.float32
    own = own if own.is_floating_point else torch.float32
    match call.op, args:
        case op, [x, float(y)] if op in _COMPARISONS:
            return [x, torch.tensor(y, dtype=own).item()]
        case op, [*tensors, float(y)] if op in _FILLS:
            return [*tensors, torch.tensor(y, dtype=own).item()]
        case "aten._softmax.default" | "aten._log_softmax.default", [x, dim_, _]:
            return [x, dim_, False]
        case "aten.rms_norm.default", _:
            unit = torch.finfo(torch.float64 if own is torch.float64 else torch.float32).eps
            weight, eps = (*args[2:], None, None)[:2]
            return [*args[:2], weight, unit if eps is None else eps]
        case "aten._fused_rms_norm.default", [x, shape, weight, None]:
            return [x, shape, weight, torch.finfo(torch.float64 if own is torch.float64 else torch.float32).eps]
        case "aten.nan_to_num.default", _:
            nan, high, low = (*args[1:], None, None, None)[:3]
            top = torch.finfo(own).max
            return [args[0], nan, top if high is None else high, -top if low is None else low]
    return args
