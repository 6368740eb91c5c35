"""Trace PyTorch functions and modules to Torch IR, together with their weights.

No call in the result has a side effect or unknown sizes. Calls that `torch_to_tensor` has a rule for are kept whole;
others are decomposed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind, TensorArgument
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from compiler.errors import CompilerError, Unsupported
from compiler.frontend import graphs
from compiler.frontend.complex_numbers import without_complex
from compiler.frontend.convert import convert
from compiler.frontend.decompose import decompose, expand
from compiler.frontend.higher_order import without_higher_order
from compiler.frontend.results import View, results, with_results
from compiler.frontend.symbols import Guard
from compiler.ir.aten import Program
from compiler.ir.expr import Expr, Size
from compiler.ir.sizes import SizeError
from compiler.runtime.packs import Pack


@dataclass(frozen=True)
class Captured:
    """A Torch IR program, and how calls of the original function map to it.

    `arguments` names the program's input for each tensor among the flattened arguments of the function. `constants` has
    the values of the constant inputs. `structure` and `literals` (by position) rebuild the function's result. `guards`
    are conditions on sizes under which the trace is valid. `views`, if given, describes the results as views of the
    program's outputs. `positions` has the position of each of `arguments` among the placeholders of a graph, some of
    which may be sizes. `packed_inputs` and `packed_results` say which arguments and results are passed as packs, by
    their positions among the program's inputs and the results.
    """

    program: Program
    constants: dict[str, torch.Tensor]
    arguments: tuple[str, ...]
    structure: pytree.TreeSpec
    literals: dict[int, object] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    views: tuple[View | Expr, ...] | None = None
    positions: tuple[int, ...] = ()
    packed_inputs: tuple[Pack, ...] = ()
    packed_results: tuple[Pack, ...] = ()

    def check(self, sizes: Mapping[Size, int]) -> None:
        """Raise SizeError for sizes for which the trace is not valid."""
        for text, holds in self.guards:
            if not holds(sizes):
                shown = ", ".join(f"{s.name} = {n}" for s, n in sizes.items())
                raise SizeError(f"{shown}: the program was compiled for sizes with {text} only")

    def inputs(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The values of the program's inputs, weights included, for a call of the function with these tensors."""
        value_of = dict(zip(self.arguments, tensors, strict=True)) | self.constants
        return tuple(value_of[i.name] for i in self.program.inputs)

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Rebuild the function's result from the values of the program's outputs."""
        values = iter(tensors)
        leaves = [self.literals[n] if n in self.literals else next(values) for n in range(self.structure.num_leaves)]
        return pytree.tree_unflatten(leaves, self.structure)


def capture(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    constants: Sequence[int] = (),
    name: str = "f",
    dynamic_shapes: Any = None,
) -> Captured:
    """Trace `function(*inputs)` to Torch IR.

    Weights of modules, and tensors that the function closes over, become constant inputs; so do the inputs at the
    positions `constants`. `dynamic_shapes` declares dynamic sizes as for `torch.export.export`, by position or by the
    names of the function's parameters. Raises CompilerError if PyTorch cannot trace the function, and Unsupported for
    dtypes and arguments that Torch IR cannot represent; ops that have no lowering are refused by `lower`.
    """
    module = function if isinstance(function, torch.nn.Module) else _Function(function)
    # Each tensor is aliased, so that a tensor that is passed twice, or closed over too, is not merged into one input.
    distinct = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tuple(inputs))
    exported = _export(module, distinct, function, dynamic_shapes)
    spec = exported.graph_signature
    graph = without_complex(expand(without_higher_order(decompose(exported, spec))))
    names = iter(_argument_names(function, inputs))
    placeholder_names: list[str] = []
    values: dict[int, torch.Tensor] = {}
    arguments: list[int] = []
    weights = [position in constants for position, x in enumerate(inputs) for _ in pytree.tree_leaves(x)]
    leaves = iter(zip(pytree.tree_leaves(tuple(inputs)), weights, strict=True))
    for s in spec.input_specs:
        if s.kind is InputKind.USER_INPUT:
            leaf, weight = next(leaves)
            argument_name = next(names)
            if isinstance(s.arg, TensorArgument):
                arguments.append(len(placeholder_names))
                values |= {len(placeholder_names): leaf} if weight else {}
            placeholder_names.append(argument_name or s.arg.name)
        else:
            values[len(placeholder_names)] = _weight_value(exported, s.target or "")
            placeholder_names.append(s.arg.name)
    converted = convert(graph, placeholder_names, values, name, exported.range_constraints)
    outputs = [s.arg for s in spec.output_specs]
    literals = {n: getattr(a, "value", None) for n, a in enumerate(outputs) if not isinstance(a, TensorArgument)}
    assert exported.call_spec.out_spec is not None, "torch.export always gives the structure of the results"
    return Captured(
        converted.program, converted.constants, tuple(converted.names[n] for n in arguments),
        exported.call_spec.out_spec, literals, converted.guards,
    )  # fmt: skip


class _Function(torch.nn.Module):
    """A function as the module that `torch.export` requires."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _argument_names(function: Callable[..., Any], inputs: Sequence[Any]) -> list[str]:
    """A name for each leaf of the inputs: that of the parameter it is passed to, numbered if it is one of several."""
    callee = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(callee).parameters.values())
    except ValueError:  # a builtin says nothing about its parameters
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    out = []
    for position, value in enumerate(inputs):
        name = plain[position] if position < len(plain) else f"x{position}"
        leaves = pytree.tree_leaves(value)
        out += [name] if len(leaves) == 1 else [f"{name}_{n}" for n in range(len(leaves))]
    return out


def _export(
    module: torch.nn.Module, inputs: tuple[Any, ...], function: Callable[..., Any], dynamic_shapes: Any
) -> ExportedProgram:
    shapes = _shapes_by_parameter(module, function, dynamic_shapes)
    with torch.no_grad(), _silenced("torch._subclasses.fake_tensor"), _without_fast_path():
        try:
            return export(module, inputs, strict=False, dynamic_shapes=shapes)
        except Exception as problem:  # whatever PyTorch raises for a program that it cannot run or trace
            function_name = getattr(function, "__qualname__", type(function).__name__)
            reason, *others = str(problem).strip().split("\n\n")[0].split("\n")
            # For sizes that were declared dynamic but are not, torch lists which and why.
            reason = "; ".join([reason, *(x.strip(" -") for x in others if x.startswith("  - "))])
            raise CompilerError(
                f"torch.export cannot trace {function_name}: {type(problem).__name__}: {reason}"
            ) from problem


def _shapes_by_parameter(module: torch.nn.Module, function: Callable[..., Any], shapes: Any) -> Any:
    """`dynamic_shapes` for the exported module, which takes the parameters of a plain function as one tuple."""
    if shapes is None or module is function:
        return shapes
    if not isinstance(shapes, Mapping):
        return (tuple(shapes),)
    names = [p.name for p in inspect.signature(function).parameters.values()]
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise CompilerError(f"dynamic_shapes names {', '.join(map(str, unknown))}; parameters are {', '.join(names)}")
    return (tuple(shapes.get(n) for n in names),)


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Silence a logger of torch about errors that are reported here."""
    logger = logging.getLogger(name)
    saved = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = saved


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Trace transformer layers as their ops, not as the single op of the inference fast path."""
    saved = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(saved)


def _weight_value(exported: ExportedProgram, target: str) -> torch.Tensor:
    value = exported.state_dict.get(target, exported.constants.get(target))
    if not isinstance(value, torch.Tensor):
        raise Unsupported(f"input {target!r}", (type(value).__name__,), "only tensors can be weights")
    return value.detach()


def from_graph(
    graph: GraphModule, constants: Mapping[int, torch.Tensor] = {}, into: Mapping[int, str] = {}
) -> Captured:
    """Convert a graph of ATen calls, whose nodes carry example values, from AOTAutograd or `make_fx`.

    It must have been decomposed with `decompositions()`. `constants` are the known values of some placeholders, by
    position. Results that share memory in eager are views of one output of the program. `into` names, for some results
    by their position, the placeholder that they may overwrite; a result does so if it shares memory with no other
    result and has the type. Inputs have the storage offsets of their examples, which `offsets` lists for checking.
    """
    placeholders = graphs.placeholders(graph)
    output = graphs.output(graph)
    leaves, structure = pytree.tree_flatten(output.args[0])
    literals = {n: leaf for n, leaf in enumerate(leaves) if not isinstance(leaf, Node)}
    wanted_results = results(graph, [leaf for leaf in leaves if isinstance(leaf, Node)])
    sources = [source for _, source in wanted_results.sources]
    unshared = {
        k: into[n] for n, (node, k) in enumerate(wanted_results.sources)
        if n in into and sources.count(k) == 1 and wanted_results.computed[k] is node
    }  # fmt: skip
    overwritten = [unshared.get(k, "") for k in range(len(wanted_results.computed))] if unshared else []
    computed = expand(with_results(graph, wanted_results.computed))
    converted = convert(computed, [n.name for n in placeholders], constants, into=overwritten, with_offsets=True)
    arguments = tuple(converted.names[n] for n in converted.input_positions)
    views = wanted_results.views(converted.symbols)
    return Captured(
        converted.program,
        converted.constants,
        arguments,
        structure,
        literals,
        converted.guards,
        views,
        converted.input_positions,
    )
