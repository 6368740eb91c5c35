"""Find the stage and the pass to blame for a failing program.

The graphs that `torch.compile` makes of it, forward and backward, are recorded with their actual inputs, run stage by
stage, and judged by the derived bounds. If all are right, the program is run once more with each graph executed by its
last stage. If that equals the result of `torch.compile`, the difference from eager is within the bounds; else the
backend around the graphs is to blame.
"""

from __future__ import annotations

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
from conformance.fuzz.program import Program, function, given, needs
from conformance.judge import ladder, oracle
from conformance.judge.subject import Subject
from conformance.rows import Found
from conformance.shapes.cases import STAGES, Case
from conformance.shapes.inputs import clone_storage

QUICK = tuple(stage for stage in STAGES if stage not in ("tile", "kernel"))  # stages not executed by loops in Python
BACKEND = "torch.compile"  # the stage to blame if no graph is
UNKNOWN = Found(verdict="fail", first_bad_stage=BACKEND)
GRAPH = Case(
    id="graph", file="", line=0, suite="fuzz", op="graph", expr="", args=(), dims={}, params={}, consts={},
    dtype="f32", layout="contig", distribution="normal", targets=("cpu", "cuda"), tier="smoke",
)  # fmt: skip

Stages = Mapping[str, tuple[str, ...]]
Boxed = Callable[[list[Any]], Sequence[Any]]
Execute = Callable[[GraphModule, Sequence[Any]], Sequence[Any]]
Known = list[tuple[Tensor, oracle.Bounded]]  # results of graphs, kept so that their memory remains theirs


@dataclass(frozen=True)
class Met:
    """A recorded graph, and the inputs of one call of it."""

    graph: GraphModule
    inputs: tuple[Any, ...]


def blamed(program: Program, options: Mapping[str, Any], tell: Callable[[str], None]) -> tuple[Found, bool]:
    """Return the first bad stage and pass of any graph, with the repro folder; and whether all is within bounds."""
    target = compiler.target(options["target"])
    found, cleared = UNKNOWN, False
    lowerings: list[compiler.Lowering] = []
    met: list[Met] = []
    try:
        tell("the graphs, in eager")
        met = recorded(program)
        for number, one in enumerate(met):
            bad = _first_bad(
                one, target, lowerings, stages(program),
                lambda stage, at=number: tell(f"stage {stage} of graph {at}"),  # type: ignore[misc]
            )  # fmt: skip
            if bad is not None:
                found = bad
                break
        else:
            tell("the graphs, by their last stage")
            cleared = not options.get("lost") and _alike(program, target)
    except Exception as error:  # torch cannot make a graph, or a pass fails on it
        found = replace(found, why=f"{type(error).__name__}: {error}")
    if not cleared:
        found = replace(found, repro=kept(program, options, [one.inputs for one in met], lowerings, found))
    return found, cleared


def stages(program: Program) -> Stages:
    """Return the option of the ladder that selects the stages to judge: all, or QUICK for large programs."""
    return {"stages": QUICK} if is_large(program) else {}


def kept(
    program: Program,
    options: Mapping[str, Any],
    inputs: Sequence[Sequence[Any]] = (),
    lowerings: Sequence[compiler.Lowering] = (),
    found: Found = UNKNOWN,
) -> str:
    """Write the repro folder if the options ask for one; returns its path or ""."""
    if not options.get("dump"):
        return ""
    return regression.dump(Path(options["dump"]), program, str(options["target"]), inputs, lowerings, found)


def _first_bad(
    one: Met, target: compiler.Target, lowerings: list[compiler.Lowering], asked: Stages, tell: Callable[[str], None]
) -> Found | None:
    """Judge a graph by the ladder; None if it passes. Its lowering is appended to `lowerings`."""
    made = subject(fitting(one))
    climbed = ladder.climb(made.program, target)
    lowerings.append(climbed.lowering)
    with torch.no_grad():
        row = ladder.judge(made, climbed, asked, tell)
    if row.verdict == "pass":
        return None
    return replace(UNKNOWN, first_bad_stage=row.first_bad_stage, first_bad_pass=row.first_bad_pass, why=row.detail)


def recorded(program: Program) -> list[Met]:
    """Run the program at each of its sizes, with the graphs executed by eager; returns the graphs in order."""
    met: list[Met] = []

    def execute(graph: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
        met.append(Met(graph, tuple(clone_storage(x.detach()) if isinstance(x, Tensor) else x for x in inputs)))
        made: Sequence[Any] = graph.forward(*inputs)
        return made

    _through(program, execute)
    return met


def _through(program: Program, execute: Execute) -> list[runs.Run]:
    """Call the program at each of its sizes, with graphs decomposed as for our backend and run by `execute`."""

    def made(gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        def run(inputs: list[Any]) -> Sequence[Any]:
            return execute(gm, inputs)

        run._boxed_call = True  # type: ignore[attr-defined]  # tells AOTAutograd to pass a list
        return run

    def backend(graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = aot_module_simplified(
            graph, examples, fw_compiler=made, bw_compiler=made, inference_compiler=made,
            decompositions=compiler.decompositions(),
        )  # fmt: skip
        return compiled

    return _called(program, backend=backend)


def _called(program: Program, device: str = "cpu", **options: Any) -> list[runs.Run]:
    torch._dynamo.reset()
    compiled = torch.compile(function(program), fullgraph=True, dynamic=program.dynamic, **options)
    every = [given(program, point) for point in program.points]
    return [runs.call(compiled, runs.copied(taken, device), needs(program)) for taken in every]


def _alike(program: Program, target: compiler.Target) -> bool:
    """Return whether the backend's results equal those of its graphs' last stages, bitwise or within derived bounds.

    The error bounds of a graph's results are propagated into later graphs that get the same tensors as inputs, such as
    those saved for the backward pass.
    """
    known: Known = []

    def execute(graph: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
        met = fitting(Met(graph, tuple(inputs)))
        made = subject(met)
        climbed = ladder.climb(made.program, target)
        found = compiler.execute(climbed.lowering, compiler.stages(target)[-1], made.tensors)
        theirs = [_bounded(met.inputs[k], known) for k in made.captured.positions]
        given = [x if bound is None else bound for x, bound in zip(made.tensors, theirs, strict=True)]
        bounded = oracle.bounds(climbed.equations, given, compiler.accuracy(climbed.lowering))
        known.extend(zip(found, bounded, strict=True))
        results: Sequence[Any] = _With(met.graph, dict(zip(made.program.outputs, found, strict=True))).run(*inputs)
        return results

    options = {"fallback": False, "target": target.name}
    theirs = _called(program, compiler.tensors_on(target), backend="mlcomp", options=options)
    pairs = zip(_through(program, execute), theirs, strict=True)
    return all(
        len(x) == len(y) and all(_same(p, q, known) for p, q in zip(x, y, strict=True))
        for a, b in pairs
        for x, y in zip(_parts(a), _parts(b), strict=True)
    )


def _parts(run: runs.Run) -> tuple[tuple[Tensor | None, ...], ...]:
    return run.outputs, run.inputs, run.gradients


def _bounded(x: Any, known: Known) -> oracle.Bounded | None:
    """Return the bounds of a result of a graph, or of a view of one, by the addresses of its elements; else None."""
    for whole, bounded in known if isinstance(x, Tensor) and x.layout is torch.strided and x.numel() else ():
        memory = x.untyped_storage()
        if x.dtype != whole.dtype or memory.data_ptr() != whole.untyped_storage().data_ptr():
            continue
        numbers = torch.full((memory.nbytes() // x.element_size(),), -1)
        there = numbers.as_strided(whole.shape, whole.stride(), whole.storage_offset())
        there.copy_(torch.arange(whole.numel()).reshape(whole.shape))
        at = numbers.as_strided(x.shape, x.stride(), x.storage_offset()).numpy()
        if (at < 0).any():
            continue
        found = bounded.full(tuple(whole.shape)).map(lambda each, at=at: each.reshape(-1)[at])  # type: ignore[misc]
        return found if len(np.unique(at)) == at.size else found.common()
    return None


def _same(a: Tensor | None, b: Tensor | None, known: Known) -> bool:
    """Return whether `b` equals `a` or is within its known bounds."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if oracle.exact(a, b).ok:
        return True
    bounded = _bounded(a, known)
    return bounded is not None and oracle.judge(b, bounded, oracle.NAMES[b.dtype]).ok


# ---- one graph


class _With(Interpreter):
    """Runs a graph in eager, except for nodes whose values are known."""

    def __init__(self, graph: GraphModule, known: Mapping[str, Tensor]) -> None:
        super().__init__(graph)
        self.known = known

    def run_node(self, n: Node) -> Any:
        """Return the known value of a node, or run it."""
        return self.known[n.name] if n.name in self.known else super().run_node(n)


def fitting(one: Met) -> Met:
    """Return the graph with dynamic sizes if it can be compiled so, else specialised on its inputs, as the backend does
    it."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if not any(isinstance(n.meta.get("val"), symbols) for n in one.graph.graph.nodes if n.op == "placeholder"):
        return one
    with _disable_current_modes():
        try:
            captured = compiler.from_graph(compiler.with_results(one.graph, _computed(one.graph)))
            compiler.lower(captured.program, compiler.target("cpu"), until="tensor")
        except Exception:  # after any error, the backend specialises the graph as well
            return replace(one, graph=compiler.specialised(one.graph, one.inputs))
        if any(isinstance(x, int) and x < 1 for x in one.inputs):  # a number that cannot be passed as a size
            return replace(one, graph=compiler.specialised(one.graph, one.inputs))
    return one


def subject(one: Met) -> Subject:
    """Return a graph as a subject of the ladder, without results that are inputs or views of other results."""
    graph = compiler.with_results(one.graph, _computed(one.graph))
    with _disable_current_modes():
        captured = compiler.from_graph(graph)
    declared = [n.meta.get("val") for n in one.graph.graph.nodes if n.op == "placeholder"]
    tensors = tuple(_laid_out(one.inputs[k], declared[k]) for k in captured.positions)
    computes = compiler.with_results(graph, compiler.sources(graph))

    def run(*_: Tensor) -> Sequence[Any]:
        made: Sequence[Any] = computes.forward(*one.inputs)
        return made

    return Subject(GRAPH, run, tensors, captured, captured.inputs(tensors))


def _laid_out(x: Any, declared: Any) -> Tensor:
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
    made = torch.empty_strided(x.shape, declared.stride(), dtype=x.dtype, device=x.device)
    once = tuple(slice(0, 1) if by == 0 else slice(None) for by in declared.stride())  # each memory location once
    made[once].copy_(x[once])
    return made


def _computed(graph: GraphModule) -> list[Node]:
    """Return the results that are neither inputs, nor views of inputs, nor sizes."""
    (output,) = (n for n in graph.graph.nodes if n.op == "output")
    return list(dict.fromkeys(n for n in output.args[0] if isinstance(n, Node) and not _is_passed_on(n)))


def _is_passed_on(node: Node) -> bool:
    if node.op == "placeholder" or not isinstance(node.meta.get("val"), Tensor):
        return True
    is_view = isinstance(node.target, OpOverload) and node.target.is_view
    return node.op == "call_function" and is_view and all(map(_is_passed_on, node.all_input_nodes))
