"""Find the stage and the pass to blame for a failing program.

The graphs that `torch.compile` makes of it, forward and backward, are recorded with their actual inputs, run stage by
stage, and judged by the derived bounds. If all are right, the program is run once more with each graph executed by its
last stage. If that equals the result of `torch.compile`, the difference from eager is within the bounds; else the
backend around the graphs is to blame.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_module_simplified
from torch._ops import OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import _disable_current_modes

import compiler
from conformance.fuzz import regression, runs
from conformance.fuzz.drawing import is_large
from conformance.fuzz.program import Program, call_arguments, function, gradient_flags
from conformance.judge import ladder, oracle
from conformance.judge.subject import Subject
from conformance.rows import FuzzResult
from conformance.shapes.cases import STAGES, Case
from conformance.shapes.inputs import clone_storage

QUICK = tuple(stage for stage in STAGES if stage not in ("tile", "kernel"))  # stages not executed by loops in Python
BACKEND = "torch.compile"  # the stage to blame if no graph is
UNKNOWN = FuzzResult(verdict="fail", first_bad_stage=BACKEND)
GRAPH = Case(
    id="graph", file="", line=0, suite="fuzz", op="graph", expr="", args=(), dims={}, params={}, consts={},
    dtype="f32", layout="contig", distribution="normal", targets=("cpu", "cuda"), tier="smoke",
)  # fmt: skip

Stages = Mapping[str, tuple[str, ...]]
Boxed = Callable[[list[Any]], Sequence[Any]]
Execute = Callable[[GraphModule, Sequence[Any]], Sequence[Any]]
KnownBounds = list[tuple[Tensor, oracle.Bounded]]  # results of graphs, kept so that their memory remains theirs


@dataclass(frozen=True)
class RecordedGraph:
    """A recorded graph, and the inputs of one call of it."""

    graph: GraphModule
    inputs: tuple[Any, ...]


def blame_program(program: Program, options: Mapping[str, Any], tell: Callable[[str], None]) -> tuple[FuzzResult, bool]:
    """Return the first bad stage and pass of any graph, with the repro folder; and whether all is within bounds.

    For a graph that views bits as another element type, which has no stages, the finding is "unsupported".
    """
    target = compiler.target(options["target"])
    finding, cleared = UNKNOWN, False
    lowerings: list[compiler.Lowering] = []
    graphs: list[RecordedGraph] = []
    try:
        tell("the graphs, in eager")
        graphs = record_graphs(program)
        for number, graph in enumerate(graphs):
            graph_finding = _first_bad(
                graph, target, lowerings, stages(program),
                lambda stage, n=number: tell(f"stage {stage} of graph {n}"),  # type: ignore[misc]
            )  # fmt: skip
            if graph_finding is not None:
                finding = graph_finding
                break
        else:
            tell("the graphs, by their last stage")
            cleared = not options.get("lost") and _equals_last_stages(program, target)
    except Exception as error:  # torch cannot make a graph, or a pass fails on it
        if _is_of_bit_view(error) and not options.get("lost"):
            return FuzzResult(verdict="unsupported", detail=str(error)), False
        finding = replace(finding, why=f"{type(error).__name__}: {error}")
    if not cleared:
        finding = replace(
            finding, repro=write_repro(program, options, [graph.inputs for graph in graphs], lowerings, finding)
        )
    return finding, cleared


def stages(program: Program) -> Stages:
    """Return the option of the ladder that selects the stages to judge: all, or QUICK for large programs."""
    return {"stages": QUICK} if is_large(program) else {}


def write_repro(
    program: Program,
    options: Mapping[str, Any],
    inputs: Sequence[Sequence[Any]] = (),
    lowerings: Sequence[compiler.Lowering] = (),
    finding: FuzzResult = UNKNOWN,
) -> str:
    """Write the repro folder if the options ask for one; returns its path or ""."""
    if not options.get("dump"):
        return ""
    return regression.dump(Path(options["dump"]), program, str(options["target"]), inputs, lowerings, finding)


def _first_bad(
    recorded: RecordedGraph,
    target: compiler.Target,
    lowerings: list[compiler.Lowering],
    stage_options: Stages,
    tell: Callable[[str], None],
) -> FuzzResult | None:
    """Judge a graph by the ladder; None if it passes. Its lowering is appended to `lowerings`."""
    prepared = subject_of(specialise_if_needed(recorded))
    lowered = ladder.climb(prepared.program, target)
    lowerings.append(lowered.lowering)
    if lowered.error is not None and _is_of_bit_view(lowered.error):
        raise lowered.error
    with torch.no_grad():
        row = ladder.judge(prepared, lowered, stage_options, tell)
    if row.verdict == "pass":
        return None
    return replace(UNKNOWN, first_bad_stage=row.first_bad_stage, first_bad_pass=row.first_bad_pass, why=row.detail)


def _is_of_bit_view(error: Exception) -> bool:
    """Whether no stages exist because a graph views bits as another element type: it is compiled in parts only."""
    return isinstance(error, compiler.Unsupported) and error.op == "aten.view.dtype"


def record_graphs(program: Program) -> list[RecordedGraph]:
    """Run the program at each of its sizes, with the graphs executed by eager; returns the graphs in order."""
    graphs: list[RecordedGraph] = []

    def execute(graph: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
        graphs.append(
            RecordedGraph(graph, tuple(clone_storage(x.detach()) if isinstance(x, Tensor) else x for x in inputs))
        )
        results: Sequence[Any] = graph.forward(*inputs)
        return results

    _call_through_graphs(program, execute)
    return graphs


def _call_through_graphs(program: Program, execute: Execute) -> list[runs.Run]:
    """Call the program at each of its sizes, with graphs decomposed as for our backend and run by `execute`."""

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        def run(inputs: list[Any]) -> Sequence[Any]:
            return execute(gm, inputs)

        run._boxed_call = True  # type: ignore[attr-defined]  # tells AOTAutograd to pass a list
        return run

    def backend(graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = aot_module_simplified(
            graph, examples, fw_compiler=compile_graph, bw_compiler=compile_graph, inference_compiler=compile_graph,
            decompositions=compiler.decompositions(),
        )  # fmt: skip
        return compiled

    return _call_compiled(program, backend=backend)


def _call_compiled(program: Program, device: str = "cpu", **options: Any) -> list[runs.Run]:
    torch._dynamo.reset()
    compiled = torch.compile(function(program), fullgraph=True, dynamic=program.dynamic, **options)
    arguments = [call_arguments(program, point) for point in program.points]
    return [
        runs.call(compiled, runs.copy_arguments(call_args, device), gradient_flags(program)) for call_args in arguments
    ]


def _equals_last_stages(program: Program, target: compiler.Target) -> bool:
    """Return whether the backend's results equal those of its graphs' last stages, bitwise or within derived bounds.

    The error bounds of a graph's results are propagated into later graphs that get the same tensors as inputs, such as
    those saved for the backward pass.
    """
    known: KnownBounds = []

    def execute(graph: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
        recorded = specialise_if_needed(RecordedGraph(graph, tuple(inputs)))
        prepared = subject_of(recorded)
        lowered = ladder.climb(prepared.program, target)
        outputs = compiler.execute(lowered.lowering, compiler.stages(target)[-1], prepared.tensors)
        captured = prepared.captured
        values = captured.inputs([recorded.inputs[k] for k in captured.positions])
        input_bounds = [_bounds_of(x, known) for x in values]
        exact_or_bounded = [
            x if bound is None else bound for x, bound in zip(prepared.tensors, input_bounds, strict=True)
        ]
        output_bounds = oracle.bounds(lowered.equations, exact_or_bounded, compiler.accuracy(lowered.lowering))
        known.extend(zip(outputs, output_bounds, strict=True))
        # Torch IR numbers its values anew, so that its names of outputs may be those of other nodes.
        names = [
            n.name for n in compiler.sources(compiler.with_results(recorded.graph, _computed_results(recorded.graph)))
        ]
        known_values = dict(zip(names, outputs, strict=True))
        results: Sequence[Any] = _WithKnownValues(recorded.graph, known_values).run(*inputs)
        return results

    options = {"fallback": False, "target": target.name}
    backend_runs = _call_compiled(program, compiler.tensors_on(target), backend="mlcomp", options=options)
    pairs = zip(_call_through_graphs(program, execute), backend_runs, strict=True)
    return all(
        len(x) == len(y) and all(_is_within_bounds(p, q, known) for p, q in zip(x, y, strict=True))
        for a, b in pairs
        for x, y in zip(_tensors_of(a), _tensors_of(b), strict=True)
    )


def _tensors_of(run: runs.Run) -> tuple[tuple[Tensor | None, ...], ...]:
    return run.outputs, run.inputs, run.gradients


def _bounds_of(x: Any, known: KnownBounds) -> oracle.Bounded | None:
    """Return the bounds of a result of a graph, or of a view of one, by the addresses of its elements; else None."""
    for result, bounded in known if isinstance(x, Tensor) and x.layout is torch.strided and x.numel() else ():
        memory = x.untyped_storage()
        if x.dtype != result.dtype or memory.data_ptr() != result.untyped_storage().data_ptr():
            continue
        numbers = torch.full((memory.nbytes() // x.element_size(),), -1)
        result_numbers = numbers.as_strided(result.shape, result.stride(), result.storage_offset())
        result_numbers.copy_(torch.arange(result.numel()).reshape(result.shape))
        positions = numbers.as_strided(x.shape, x.stride(), x.storage_offset()).numpy()
        if (positions < 0).any():
            continue
        selected = bounded.full(tuple(result.shape)).map(lambda each, positions=positions: each.reshape(-1)[positions])  # type: ignore[misc]
        return selected if len(np.unique(positions)) == positions.size else selected.common().full(positions.shape)
    return None


def _bounds_of_original(x: Tensor, known: KnownBounds) -> oracle.Bounded | None:
    """Return the bounds of a gradient that autograd made of the result of a graph: a copy in the strides of its
    argument, or, if the argument is returned as well, the sum with the gradient of that result."""
    for result, bounded in known:
        if x.dtype == result.dtype and x.shape == result.shape:
            added = runs.weights(x)
            for value, more in ((result, torch.zeros_like(added)), (result + added, added)):
                if oracle.exact(x.detach(), value).ok:
                    full = bounded.full(tuple(x.shape))
                    return replace(full, v=full.v + oracle.to_array(more))
    return None


def _is_within_bounds(a: Tensor | None, b: Tensor | None, known: KnownBounds) -> bool:
    """Return whether `b` equals `a` or is within its known bounds."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if oracle.exact(a, b).ok:
        return True
    bounded = _bounds_of(a, known) or _bounds_of_original(a, known)
    return bounded is not None and oracle.judge(b, bounded, oracle.NAMES[b.dtype]).ok


# ---- one graph


class _WithKnownValues(Interpreter):
    """Runs a graph in eager, except for nodes whose values are known."""

    def __init__(self, graph: GraphModule, known: Mapping[str, Tensor]) -> None:
        super().__init__(graph)
        self.known = known

    def run_node(self, n: Node) -> Any:
        """Return the known value of a node, or run it."""
        return self.known[n.name] if n.name in self.known else super().run_node(n)


def specialise_if_needed(recorded: RecordedGraph) -> RecordedGraph:
    """Return the graph with dynamic sizes if it can be compiled so, else specialised on its inputs, as the backend does
    it."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if not any(isinstance(n.meta.get("val"), symbols) for n in recorded.graph.graph.nodes if n.op == "placeholder"):
        return recorded
    with _disable_current_modes():
        try:
            captured = compiler.from_graph(compiler.with_results(recorded.graph, _computed_results(recorded.graph)))
            compiler.lower(captured.program, compiler.target("cpu"), until="tensor")
        except Exception:  # after any error, the backend specialises the graph as well
            return replace(recorded, graph=compiler.specialised(recorded.graph, recorded.inputs))
        if any(isinstance(x, int) and x < 1 for x in recorded.inputs):  # a number that cannot be passed as a size
            return replace(recorded, graph=compiler.specialised(recorded.graph, recorded.inputs))
    return recorded


def subject_of(recorded: RecordedGraph) -> Subject:
    """Return a graph as a subject of the ladder, without results that are inputs or views of other results."""
    graph = compiler.with_results(recorded.graph, _computed_results(recorded.graph))
    with _disable_current_modes():
        captured = compiler.from_graph(graph)
    declared = [n.meta.get("val") for n in recorded.graph.graph.nodes if n.op == "placeholder"]
    tensors = tuple(_with_declared_strides(recorded.inputs[k], declared[k]) for k in captured.positions)
    without_views = compiler.with_results(graph, compiler.sources(graph))

    def run(*_: Tensor) -> Sequence[Any]:
        results: Sequence[Any] = without_views.forward(*recorded.inputs)
        return results

    return Subject(GRAPH, run, tensors, captured, captured.inputs(tensors))


def _with_declared_strides(x: Any, declared: Any) -> Tensor:
    """Return the tensor with the strides that the graph declares, as the backend passes it.

    Tensors saved for the backward pass may have other strides. A number becomes a tensor of that size with one stored
    element, from which the graph can read it.
    """
    if not isinstance(x, Tensor):
        return torch.zeros(1, dtype=torch.uint8).expand(x)
    if not isinstance(declared, Tensor):
        return x
    # Comparing with a symbolic size would add a guard that specialises the graph on it.
    if not all(isinstance(n, int) for n in (*declared.shape, *declared.stride())) or x.stride() == declared.stride():
        return x
    strided = torch.empty_strided(x.shape, declared.stride(), dtype=x.dtype, device=x.device)
    each_once = tuple(slice(0, 1) if by == 0 else slice(None) for by in declared.stride())  # each memory location once
    strided[each_once].copy_(x[each_once])
    return strided


def _computed_results(graph: GraphModule) -> list[Node]:
    """Return the results that are neither inputs, nor views of inputs, nor sizes."""
    (output,) = (n for n in graph.graph.nodes if n.op == "output")
    return list(dict.fromkeys(n for n in output.args[0] if isinstance(n, Node) and not _is_passed_on(n)))


def _is_passed_on(node: Node) -> bool:
    """Return whether a result is an input, a view of one, also one of several such as a split's, or no tensor."""
    if node.op == "placeholder" or not isinstance(node.meta.get("val"), Tensor):
        return True
    if node.op != "call_function":
        return False
    call = node.all_input_nodes[0] if node.target is operator.getitem else node
    is_view = isinstance(call.target, OpOverload) and call.target.is_view
    return is_view and all(map(_is_passed_on, call.all_input_nodes))
