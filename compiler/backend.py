"""`torch.compile(f, backend="mlcomp")`: an ATen graph of AOTAutograd goes in, a function of its flat inputs comes out.

A graph with an op that mlcomp does not have runs in eager, with a warning that names the op; with
`options={"fallback": False}` it is an error. Graphs with symbolic sizes are compiled once for each set of sizes met.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from compiler import execution, frontend
from compiler.errors import CompilerError, Unsupported

Function = Callable[..., Sequence[Any]]

_OPTIONS = {"fallback": True, "target": "cpu"}


class FallbackWarning(UserWarning):
    """Part of a model runs in eager."""


def mlcomp(
    graph: GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Function:
    """The entry point of Dynamo; raises CompilerError for unknown options, and without the fallback Unsupported."""
    unknown = set(options or {}) - set(_OPTIONS)
    if unknown or mode not in (None, "default"):
        asked = sorted(unknown) or f"mode={mode!r}"
        raise CompilerError(f"backend mlcomp has no {asked}; its options are {_OPTIONS}, and mode is left out")
    chosen = _OPTIONS | (options or {})

    def compile_part(gm: GraphModule, example_inputs: Sequence[Any]) -> Function:
        return make_boxed_func(_compiled(gm, example_inputs, chosen))

    made: Function = aot_module_simplified(
        graph,
        inputs,
        fw_compiler=compile_part,
        bw_compiler=compile_part,
        inference_compiler=compile_part,
        decompositions=frontend.decompositions(),
    )
    return made


def _compiled(graph: GraphModule, examples: Sequence[Any], options: dict[str, Any]) -> Function:
    if any(isinstance(x, torch.SymInt) or (isinstance(x, torch.Tensor) and _symbolic(x)) for x in examples):
        return _Specialising(graph, options)
    try:
        return _static(graph, options)
    except Unsupported as refusal:
        if not options["fallback"]:
            raise
        warnings.warn(
            f"mlcomp runs a graph of {_calls(graph)} calls in eager: {refusal}", FallbackWarning, stacklevel=2
        )
        return graph.forward


def _symbolic(x: torch.Tensor) -> bool:
    return not all(isinstance(n, int) for n in (*x.shape, *x.stride()))


def _calls(graph: GraphModule) -> int:
    return sum(n.op == "call_function" for n in graph.graph.nodes)


def _static(graph: GraphModule, options: dict[str, Any]) -> Function:
    """One compiled graph; what it returns besides tensors (None, numbers) is as the graph has it."""
    made = frontend.convert(frontend.expand(graph))
    leaves = next(n for n in graph.graph.nodes if n.op == "output").args[0]
    literals = {n: x for n, x in enumerate(leaves) if not isinstance(x, torch.fx.Node)}
    names = [i.name for i in made.program.inputs]
    captured = frontend.Captured(
        made.program,
        made.constants,
        tuple(n for n in names if n not in made.constants),
        pytree.tree_structure(list(leaves)),
        literals,
    )
    if not made.program.outputs:
        return graph.forward
    call = execution.build_captured(captured, options["target"]).launch
    positions = [k for k, name in enumerate(made.inputs) if name in names]

    def run(*inputs: Any) -> Sequence[Any]:
        return captured.rebuild(call(*(inputs[k].detach() for k in positions)))  # type: ignore[no-any-return]

    return run


class _Specialising:
    """Compiles a graph with symbolic sizes for the sizes of each call."""

    def __init__(self, graph: GraphModule, options: dict[str, Any]) -> None:
        self.graph, self.options = graph, options
        self.made: dict[tuple[Any, ...], Function] = {}

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        key = tuple((x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs)
        if key not in self.made:
            with FakeTensorMode() as mode, torch.no_grad():
                fake = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in inputs]
                static = make_fx(self.graph.forward)(*fake)
            self.made[key] = _compiled(static, fake, self.options)
        return self.made[key](*inputs)
