"""`torch.compile(f, backend="mlcomp")`: a graph of Dynamo goes in, a function of its flat inputs comes out.

AOTAutograd makes the graph functional, splits off the backward pass and hands over ATen calls; each such graph becomes
one program. A graph with an op that mlcomp does not have runs in eager, with a warning that names the op; with
`options={"fallback": False}` it is an error. Graphs with symbolic sizes are compiled once for each set of sizes met.
The target is that of the device that a graph's tensors are on, unless `options={"target": ...}` names one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
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
        return _specialising(graph, options)
    try:
        return _static(graph, options)
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


# One graph with known sizes -------------------------------------------------------------------------------------------


def _static(graph: GraphModule, options: Options) -> Boxed:
    """What is computed comes from one program; what the graph merely passes on (inputs, views of them) does not."""
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    results = list(next(n for n in graph.graph.nodes if n.op == "output").args[0])
    passed_on = {n: view for n in results if isinstance(n, Node) and (view := _view_of(n, placeholders))}
    computed = list(dict.fromkeys(n for n in results if isinstance(n, Node) and n not in passed_on))
    if not computed:
        return _eager(graph)
    target = options.target or _target_of([n.meta.get("val") for n in (*placeholders, *computed)])
    launch = execution.build_captured(frontend.from_graph(_with_results(graph, computed)), target).launch
    tensors = [k for k, n in enumerate(placeholders) if isinstance(n.meta.get("val"), torch.Tensor)]
    every = len(tensors) == len(placeholders)
    if results == computed:
        return lambda inputs: launch(*inputs) if every else launch(*[inputs[k] for k in tensors])

    makers = [_maker(x, computed, passed_on) for x in results]

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


View = tuple[int, list[Node]]


def _view_of(node: Node, placeholders: list[Node]) -> View | None:
    """Which input a value is a view of, and the calls that make it one; None for what is computed."""
    calls: list[Node] = []
    while node.op == "call_function" and isinstance(node.target, OpOverload) and node.target.is_view:
        source = node.args[0]
        if len(node.all_input_nodes) != 1 or not isinstance(source, Node):
            return None
        calls.insert(0, node)
        node = source
    return (placeholders.index(node), calls) if node.op == "placeholder" else None


def _maker(result: Any, computed: list[Node], passed_on: dict[Node, View]) -> Callable[[list[Any], Sequence[Any]], Any]:
    """How a result is had from the inputs and from what the program made."""
    if not isinstance(result, Node):
        return lambda inputs, made: result
    if result in passed_on:
        position, calls = passed_on[result]

        def view(inputs: list[Any], made: Sequence[Any]) -> Any:
            value = inputs[position]
            for call in calls:
                value = call.target(value, *call.args[1:], **call.kwargs)  # type: ignore[operator]
            return value

        return view
    place = computed.index(result)
    return lambda inputs, made: made[place]
