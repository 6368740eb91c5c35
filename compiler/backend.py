"""`torch.compile(f, backend="mlcomp")`: a graph of Dynamo goes in, a function of its flat inputs comes out.

AOTAutograd makes the graph functional, splits off the backward pass and hands over ATen calls; each such graph becomes
one program. A graph with an op that mlcomp does not have runs in eager, with a warning that names the op; with
`options={"fallback": False}` it is an error. A graph with symbolic sizes is compiled once for all of them, or, with a
warning, for each set of sizes met where that cannot be.
The target is that of the device that a graph's tensors are on, unless `options={"target": ...}` names one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from compiler import execution, execution_gpu, frontend
from compiler.errors import CompilerError, Unsupported
from compiler.targets import named
from compiler.targets.target import Target

# A function of the list of a graph's inputs, which it may empty.
Boxed = Callable[[list[Any]], Sequence[Any]]

_OPTIONS = {"fallback": True, "target": None}
_TARGETS = {"cpu": "cpu", "cuda": "cuda"}  # by the type of the device


class FallbackWarning(UserWarning):
    """Part of a model runs in eager."""


class SpecialisationWarning(UserWarning):
    """Part of a model is compiled for each set of sizes that comes."""


@dataclass(frozen=True)
class Options:
    fallback: bool
    target: Target | None


def mlcomp(
    graph: GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The entry point of Dynamo; raises CompilerError for unknown options, and without the fallback Unsupported."""
    chosen = _options(options or {}, mode)

    def compile_part(gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        with _disable_current_modes():  # AOTAutograd's own: in it, what a graph holds would not be for real
            made = _compiled(gm, example_inputs, chosen)
        made._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd tells
        return made

    made: Callable[..., Any] = aot_module_simplified(
        graph,
        inputs,
        fw_compiler=compile_part,
        bw_compiler=compile_part,
        inference_compiler=compile_part,
        decompositions=frontend.decompositions(),
    )
    return made


def _options(given: dict[str, Any], mode: str | None) -> Options:
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown or mode not in (None, "default"):
        asked = f"option {', '.join(unknown)}" if unknown else f"mode {mode!r}"
        raise CompilerError(f"backend mlcomp has no {asked}: its options are {_OPTIONS}, and it has no modes")
    chosen = _OPTIONS | given
    target = chosen["target"]
    return Options(bool(chosen["fallback"]), None if target is None else named.target(str(target)))


def _compiled(graph: GraphModule, examples: Sequence[Any], options: Options) -> Boxed:
    if any(isinstance(x, torch.SymInt) or (isinstance(x, torch.Tensor) and _is_symbolic(x)) for x in examples):
        return _dynamic(graph, options)
    try:
        return _program(graph, options)
    except Unsupported as refusal:
        if not options.fallback:
            raise
        calls = sum(n.op == "call_function" for n in graph.graph.nodes)
        warnings.warn(f"mlcomp runs a graph of {calls} calls in eager: {refusal}", FallbackWarning, stacklevel=2)
        return _eager(graph)


def _is_symbolic(x: torch.Tensor) -> bool:
    return not all(isinstance(n, int) for n in (*x.shape, *x.stride()))


def _eager(graph: GraphModule) -> Boxed:
    return lambda inputs: graph.forward(*inputs)


def _dynamic(graph: GraphModule, options: Options) -> Boxed:
    """One program for all sizes; where that cannot be, one for each set of sizes, and a warning."""
    try:
        return _program(graph, options)
    except Unsupported as refusal:
        warnings.warn(f"mlcomp compiles a graph anew for other sizes: {refusal}", SpecialisationWarning, stacklevel=3)
        return _specialising(graph, options)


def _specialising(graph: GraphModule, options: Options) -> Boxed:
    """Compiles a graph with symbolic sizes for the sizes of each call."""
    made: dict[tuple[Any, ...], Boxed] = {}

    def run(inputs: list[Any]) -> Sequence[Any]:
        key = tuple((x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs)
        if key not in made:
            mode = FakeTensorMode()
            fakes = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in inputs]
            made[key] = _compiled(frontend.retrace(graph, fakes, mode), fakes, options)
        return made[key](inputs)

    return run


# One graph ------------------------------------------------------------------------------------------------------------


def _program(graph: GraphModule, options: Options) -> Boxed:
    """What is computed comes from one program; what the graph merely passes on (inputs, views of them) does not."""
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    results = list(next(n for n in graph.graph.nodes if n.op == "output").args[0])
    computed = list(dict.fromkeys(n for n in results if isinstance(n, Node) and not _is_passed_on(n)))
    if not computed:
        return _eager(graph)
    target = options.target or _target_of([n.meta.get("val") for n in (*placeholders, *computed)])
    captured = frontend.from_graph(_with_results(graph, computed))
    # What torch has assumed of sizes Dynamo checks before each call.
    launch = execution.build_captured(replace(captured, guards=()), target).launch
    tensors = [k for k, n in enumerate(placeholders) if isinstance(n.meta.get("val"), torch.Tensor)]
    every = len(tensors) == len(placeholders)
    if results == computed:
        return lambda inputs: launch(*inputs) if every else launch(*[inputs[k] for k in tensors])

    makers = [_maker(x, computed, placeholders) for x in results]

    def run(inputs: list[Any]) -> Sequence[Any]:
        made = launch(*[inputs[k] for k in tensors])
        return [make(inputs, made) for make in makers]

    return run


def _target_of(values: Sequence[Any]) -> Target:
    """The target of the one device that all tensors of a graph are on; raises Unsupported for several or others."""
    devices = {str(x.device): x.device.type for x in values if isinstance(x, torch.Tensor)}
    kinds = list(devices.values()) or ["cpu"]
    if len(devices) > 1 or kinds[0] not in _TARGETS:
        raise Unsupported("device", sorted(devices), "the tensors of a graph are all on the cpu or all on one GPU")
    target = named.target(_TARGETS[kinds[0]])
    if target.kind == "cuda" and not execution_gpu.on_gpu(target):
        raise Unsupported(
            "device", sorted(devices), "kernels cannot run on this GPU: CuPy is missing, or it is too old"
        )
    return target


def _with_results(graph: GraphModule, results: list[Node]) -> GraphModule:
    """A copy of the graph that gives these results alone."""
    copied = Graph()
    table: dict[Node, Node] = {}
    copied.graph_copy(graph.graph, table)
    copied.output(tuple(table[n] for n in results))
    return GraphModule(graph, copied)


def _is_passed_on(node: Node) -> bool:
    """An input, a view of one, or a number that sizes of inputs give."""
    if node.op == "placeholder":
        return True
    is_number = isinstance(node.meta.get("val"), torch.SymInt)
    is_view = isinstance(node.target, OpOverload) and node.target.is_view
    return node.op == "call_function" and (is_number or is_view) and all(map(_is_passed_on, node.all_input_nodes))


def _maker(result: Any, computed: list[Node], placeholders: list[Node]) -> Callable[[list[Any], Sequence[Any]], Any]:
    """How a result is had from the inputs and from what the program made."""
    if not isinstance(result, Node):
        return lambda inputs, made: result
    if result in computed:
        place = computed.index(result)
        return lambda inputs, made: made[place]
    positions = {n: k for k, n in enumerate(placeholders)}

    def again(node: Node, inputs: list[Any]) -> Any:
        if node in positions:
            return inputs[positions[node]]
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: again(n, inputs))
        return node.target(*args, **kwargs)  # type: ignore[operator]

    return lambda inputs, made: again(result, inputs)
