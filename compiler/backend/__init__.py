"""The backend of `torch.compile(f, backend="mlcomp")`: compiles a Dynamo graph to a function of its flat inputs.

AOTAutograd makes the graph functional, separates the backward pass and provides ATen calls; each such graph becomes one
program. Calls that cannot be compiled run in eager between the compiled regions, and one FallbackWarning per graph
names them with the reasons; `options={"fallback": "error"}` raises an error instead. A graph with symbolic sizes is
compiled once for all sizes. If that is impossible, it is compiled for each set of sizes, with a SpecialisationWarning;
the same holds if arguments have other strides than torch assumed. The target is chosen by the device of the graph's
tensors, unless `options={"target": ...}` names one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.utils import GmWrapper, flatten_graph_inputs
from torch._functorch import config as functorch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from compiler import frontend
from compiler.backend import (
    autocast,
    complex_graphs,
    dynamo,
    graph_cache,
    input_writes,
    passthrough,
    quantization,
    regions,
    tangents,
)
from compiler.backend.input_writes import Boxed
from compiler.backend.options import CacheWarning as CacheWarning
from compiler.backend.options import Compiled, Options, identity_of, parsed
from compiler.backend.options import FallbackWarning as FallbackWarning
from compiler.backend.options import Report as Report
from compiler.backend.options import SpecialisationWarning as SpecialisationWarning
from compiler.backend.options import TuningWarning as TuningWarning
from compiler.backend.partition import partition
from compiler.errors import CacheError, CompilerError, MemoryLimitError, ToolchainError, Unsupported
from compiler.execution import executable, gpu_programs, named
from compiler.execution.tuning import command
from compiler.frontend import graphs, margins, python_kernels
from compiler.runtime import detect, garbage, gpu_memory, store
from compiler.targets.target import Target

# Runs a graph on inputs that its program refused; called with the inputs and the exception.
Unfit = Callable[[list[Any], Exception], Sequence[Any]]

_unusable: set[str] = set()  # cache folders that cannot be used


class _Refused(CompilerError):
    """A program does not accept its arguments."""


def mlcomp(
    graph: GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph; Dynamo calls this as the backend "mlcomp".

    Options: `fallback` is "eager" (default) or "error"; `target` names a target (default: by device); `check_indices`
    is "async" (default), "sync" or "off"; `quantize` is a mode such as "int8-weight-only"; `memory_limit` is the limit
    for the temporaries of a program in bytes. `mode`, which `options` may also contain, is "default", "reduce-overhead"
    or "max-autotune".

    Raises CompilerError for unknown options and modes, MemoryLimitError if temporaries exceed the limit, and with
    fallback "error" whatever makes a call uncompilable, usually Unsupported.
    """
    chosen = parsed(options or {}, mode, _warn_of_eager)
    with garbage.held_back():
        if any(isinstance(x, list | tuple | dict) for x in inputs):  # compiled autograd: a whole backward pass
            return flatten_graph_inputs(graph, inputs, functools.partial(_traced, options=chosen))
        return _compile(graph, inputs, chosen)


def explain(function: Callable[..., Any], inputs: Sequence[Any], options: dict[str, Any]) -> list[Report]:
    """Call a function under `torch.compile` and return how each of its graphs was compiled."""
    reports: list[Report] = []
    chosen = parsed(options, None, reports.append)
    torch._dynamo.reset()
    torch.compile(function, backend=lambda graph, examples: _compile(graph, examples, chosen))(*inputs)
    return reports


def _compile(graph: GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Compile a Dynamo graph, or load its program from the cache if an earlier process stored it."""
    place = (
        None
        if options.tuned or options.quantize is not None
        else graph_cache.place(graph, inputs, identity_of(options))
    )
    if place is None:
        return _traced(graph, inputs, options)
    if (found := graph_cache.read(place)) is not None:
        with contextlib.suppress(CompilerError):  # e.g. no g++; tracing then compiles what it can
            return _loaded(found, graph, options)
    wholes: list[graph_cache.Whole | None] = []

    def hear(report: Report) -> None:
        whole = report.whole
        wholes.append(whole and graph_cache.around(whole, inputs, len(graphs.output(graph).args[0])))
        options.hear(report)

    made = _traced(graph, inputs, replace(options, hear=hear))
    if len(wholes) == 1 and wholes[0] is not None:
        graph_cache.write(place, wholes[0])
    return made


def _traced(graph: GraphModule | GmWrapper, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    traced = graph.gm if isinstance(graph, GmWrapper) else graph

    def compile_part(gm: GraphModule, example_inputs: Sequence[Any], saves: bool = False, whole: bool = False) -> Boxed:
        with compile_lock, _disable_current_modes():  # AOTAutograd's fake mode makes constants fake
            gm = frontend.without_higher_order(gm)
            if options.quantize is not None:
                quantization.mark(gm, inputs, saves)
            if (problem := input_writes.refused(gm)) is not None:
                return _boxed(_in_eager(gm, problem, options))
            last = input_writes.without_writes(gm, saves)
            plain = frontend.without_dropout(frontend.with_assertions(gm))
            updates = last.written if whole and not last.moved and not frontend.has_complex(plain) else None
            compile_real = functools.partial(_compiled, options=options, updates=updates)
            made = complex_graphs.compiled(plain, example_inputs, compile_real, options.fallback, seen=whole)
            return _boxed(input_writes.performing(tangents.carried(made, plain), last))

    # Torch copies a gradient into the strides of the result, which is wrong if elements of the result overlap.
    strides = functorch.patch(guess_tangent_strides_as_outputs=not regions.gives_overlapping(traced))
    with python_kernels.whole_resizing(inputs), strides, margins.derived():
        trace = functools.partial(
            aot_module_simplified,
            graph,
            inputs,
            fw_compiler=functools.partial(compile_part, saves=True),
            bw_compiler=dynamo.unseen(compile_part),
            inference_compiler=functools.partial(compile_part, whole=True),
            keep_inference_input_mutations=True,
            decompositions=frontend.decompositions(),
        )
        return autocast.off_in_backward(trace, functools.partial(partition, aligned=_is_for_gpu(inputs, options)))


def _boxed(run: Boxed) -> Boxed:
    """Mark a function as taking its inputs as one list, which AOTAutograd may empty."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _loaded(found: graph_cache.Whole, graph: GraphModule, options: Options) -> Callable[..., Any]:
    """Build the cached program of a graph; `trace` compiles the graph for inputs that the program refuses."""
    report = Report(found.calls)
    with compile_lock:
        launch = _launched(found.captured, _target_on({found.device}, options), options, report, found.calls)
    options.hear(report)

    def trace(inputs: Sequence[Any]) -> Callable[..., Any]:
        with compile_lock, _disable_current_modes():
            return _traced(graph, inputs, options)

    return graph_cache.running(found, launch, trace)


def _is_for_gpu(inputs: Sequence[Any], options: Options) -> bool:
    if options.target is not None:
        return options.target.kind == "cuda"
    return any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs)


def _compiled(
    graph: GraphModule, examples: Sequence[Any], options: Options, updates: tuple[int, ...] | None = None
) -> Boxed:
    """Compile a graph as one program; if only symbolic sizes prevent that, per set of sizes; otherwise in parts.

    `updates` lists the inputs that the last results are written to. None means that the program cannot be cached as a
    whole Dynamo graph.
    """
    report = Report(len(regions.calls(graph)))
    try:
        made = _program(graph, options, _refitting(graph, options), report)
        found = report.regions[0].whole if report.regions else None
        report.whole = None if found is None or updates is None else replace(found, updates=updates)
        options.hear(report)
        return made
    except Exception as problem:
        if any(isinstance(x, torch.SymInt) or (isinstance(x, torch.Tensor) and _is_symbolic(x)) for x in examples):
            refused = regions.refused(graph, options.target is not None)
            if not any(map(regions.for_all_sizes, refused)):
                _warn_of_sizes("sizes", problem)
                return _specialising(graph, options)
        return _in_parts(graph, problem, options)


def _is_symbolic(x: torch.Tensor) -> bool:
    return not all(isinstance(n, int) for n in (*x.shape, *x.stride()))


def _in_parts(graph: GraphModule, problem: Exception, options: Options) -> Boxed:
    """Compile the regions of a graph that can be compiled; run the rest in eager."""
    if not options.fallback or isinstance(problem, MemoryLimitError):
        raise problem
    report = Report(len(regions.calls(graph)))
    refused = {} if isinstance(problem, ToolchainError) else regions.refused(graph, options.target is not None)
    report.eager.update(str(refused[n]) for n in regions.calls(graph) if n in refused)
    made = _parts(regions.split(graph, refused), options, report) if refused else None
    made = made or _bisected(graph, problem, options, report)
    options.hear(report)
    return made


def _parts(graph: GraphModule, options: Options, report: Report) -> Boxed:
    """Compile each region that a graph calls."""

    def one(region: GraphModule, _: Sequence[Any]) -> Boxed:
        return _program(region, options, _refitting(region, options), report)

    for node in list(graph.graph.nodes):
        if node.op == "call_module":
            region = getattr(graph, node.target)
            examples, before = [n.meta.get("val") for n in graphs.placeholders(region)], len(report.regions)
            try:
                made = complex_graphs.compiled(region, examples, one, fallback=False)
                counted = [replace(r, calls=len(regions.calls(region))) for r in report.regions[before:]]
                report.regions[before:] = counted  # count calls before complex numbers were split into parts
            except Exception as problem:
                made = _bisected(region, problem, options, report)
            setattr(graph, node.target, regions.Region(made))
    return lambda inputs: graph.forward(*inputs)


def _bisected(graph: GraphModule, problem: Exception, options: Options, report: Report) -> Boxed:
    """Compile the halves of a graph that fails although no call is refused; run it in eager if no attempt is left."""
    if isinstance(problem, MemoryLimitError):
        raise problem
    count = len(regions.calls(graph))
    if count < 2 * regions.LEAST or not report.attempts or isinstance(problem, ToolchainError):
        report.eager[_named(problem)] += count
        return lambda inputs: graph.forward(*inputs)
    report.attempts -= 1
    return _parts(regions.halves(graph), options, report)


def _in_eager(graph: GraphModule, problem: Exception, options: Options) -> Boxed:
    if not options.fallback:
        raise problem
    count = len(regions.calls(graph))
    options.hear(Report(count, eager=Counter({_named(problem): count})))
    return lambda inputs: graph.forward(*inputs)


def _warn_of_eager(report: Report) -> None:
    if report.eager:
        count = report.calls - sum(r.calls for r in report.regions)
        reasons = "; ".join(f"{why} ({n} calls)" if n > 1 else why for why, n in report.eager.items())
        warnings.warn(
            f"mlcomp runs {count} of {report.calls} calls of a graph in eager: {reasons}", FallbackWarning, stacklevel=2
        )


def _named(problem: Exception) -> str:
    """The message of a refusal; for any other exception also its type and the pass that raised it."""
    if isinstance(problem, CompilerError):
        return str(problem)
    where = "".join(f", {note}" for note in getattr(problem, "__notes__", ()))
    return f"{type(problem).__name__}: {problem}{where}; this is a bug in mlcomp"


def _warn_of_sizes(what: str, problem: Exception) -> None:
    warnings.warn(f"mlcomp recompiles a graph for other {what}: {_named(problem)}", SpecialisationWarning, stacklevel=3)


def _specialising(graph: GraphModule, options: Options) -> Boxed:
    """Compile a graph per set of sizes and strides; if that fails too, run it in eager."""
    made: dict[tuple[Any, ...], Boxed] = {}
    begins = passthrough.begins(graphs.placeholders(graph), frontend.offsets(graph))

    def run(inputs: list[Any]) -> Sequence[Any]:
        key = tuple((x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs)
        key += tuple(inputs[k].storage_offset() for k in begins)
        if key not in made:
            with compile_lock, _disable_current_modes():
                made[key] = _specialised(graph, inputs, options)
        return made[key](inputs)

    return run


def _specialised(graph: GraphModule, inputs: list[Any], options: Options) -> Boxed:
    eager: list[Boxed] = []

    def unfit(inputs: list[Any], problem: Exception) -> Sequence[Any]:
        if not eager:
            eager.append(_in_eager(graph, _Refused(str(problem)), options))
        return eager[0](inputs)

    try:
        known = frontend.specialised(graph, inputs)
        quantization.carry(graph, known)
    except Exception as problem:
        return _in_eager(graph, problem, options)
    try:
        return _program(known, options, unfit, Report(0))
    except Exception as problem:
        return _in_parts(known, problem, options)


def _refitting(graph: GraphModule, options: Options) -> Unfit:
    """Recompile a graph for arguments whose strides differ from those that torch assumed."""
    made: list[Boxed] = []

    def unfit(inputs: list[Any], problem: Exception) -> Sequence[Any]:
        if not made:
            _warn_of_sizes("arguments", _Refused(str(problem)))
            made.append(_specialising(graph, options))
        plain = [x.resolve_neg() if type(x) is torch.Tensor and x.layout is torch.strided else x for x in inputs]
        return made[0](plain)

    return unfit


# One graph ------------------------------------------------------------------------------------------------------------


def _program(graph: GraphModule, options: Options, unfit: Unfit, report: Report) -> Boxed:
    """Compile a graph as one program. Results that are inputs or views of inputs are made outside of it."""
    placeholders = graphs.placeholders(graph)
    listed = list(graphs.output(graph).args[0])
    computed = list(dict.fromkeys(n for n in listed if isinstance(n, Node) and not passthrough.is_passed_on(n)))
    if not any(isinstance(n.meta.get("val"), torch.Tensor) for n in computed):
        return lambda inputs: graph.forward(*inputs)
    wanted = frontend.with_results(graph, computed, drop=True)
    outer = graphs.placeholders(wanted)
    values = [n.meta.get("val") for n in (*outer, *computed)]
    devices = {str(x.device) for x in values if isinstance(x, torch.Tensor)}
    target = _target_on(devices, options)
    into = {computed.index(x): place.name for x, place in _places(graph) if listed.count(x) == 1 and x in computed}
    captured, taken = quantization.quantized(frontend.from_graph(wanted, into=into), wanted, options.quantize)
    captured = replace(captured, guards=())  # Dynamo checks what torch assumed about sizes before each call
    tensors = [k for k, n in enumerate(placeholders) if n.name in taken]
    told = [k for k in tensors if isinstance(placeholders[k].meta.get("val"), torch.SymInt)]
    begins = passthrough.begins(placeholders, frontend.offsets(wanted))
    whole = None
    if not told and not begins and set(listed) <= set(computed) and graph_cache.is_keepable(captured):
        picked = tuple(map(computed.index, listed))
        whole = graph_cache.Whole(captured, min(devices), len(regions.calls(graph)), tuple(tensors), picked)
    launch = _launched(captured, target, options, report, len(regions.calls(graph)), whole)
    unit = torch.zeros(1, dtype=torch.uint8, device=_device_of(values) if told else None)
    every = len(tensors) == len(placeholders) and not told
    give = None if listed == computed else passthrough.giving(listed, computed, placeholders)

    def given(inputs: list[Any]) -> list[Any]:
        # A size is passed as the shape of an expanded tensor. No shape is negative; 0 is refused too, as no program is
        # compiled for it.
        return [unit.expand(max(inputs[k], 0)) if k in told else inputs[k] for k in tensors]

    def run(inputs: list[Any]) -> Sequence[Any]:
        try:
            passthrough.check(inputs, begins)
            made = launch(*inputs) if every else launch(*given(inputs))
        except (TypeError, ValueError) as problem:
            return unfit(inputs, problem)
        return made if give is None else give(inputs, made)

    return run


def _launched(
    captured: frontend.Captured,
    target: Target,
    options: Options,
    report: Report,
    calls: int,
    whole: graph_cache.Whole | None = None,
) -> Callable[..., Sequence[Any]]:
    """Build the program of a region of `calls` calls, report it, and return its launch function."""
    made = _built(captured, target, options.check_indices, options.tuned)
    report.regions.append(Compiled(calls, made.names, made.code, whole))
    apart = options.own is not None and target.kind == "cuda" and gpu_programs.on_gpu(target)
    return gpu_memory.within(made.launch, options.own) if options.own is not None and apart else made.launch


def _places(graph: GraphModule) -> list[tuple[Node, Node]]:
    """The results of a graph that are written to inputs, each with the placeholder of its input."""
    output = graphs.output(graph)
    return [(output.args[0][n], place) for n, place in output.meta.get(input_writes.INTO, {}).items()]


def _built(captured: frontend.Captured, target: Target, checks: str, tuned: bool) -> executable.Executable:
    """Build a program in the cache, or in a temporary folder if the cache cannot be used.

    With `tuned`, kernels that have no stored schedule are tuned first.
    """
    folder = str(detect.default_cache(os.environ))
    if folder not in _unusable:
        try:
            for found in command.tune_missing(captured, target, Path(folder)) if tuned else ():
                if found.problem:
                    warnings.warn(f"not tuned: {found.name}: {found.problem}", TuningWarning, stacklevel=2)
            return executable.build_captured(captured, target, check_indices=checks)
        except CacheError as problem:
            _unusable.add(folder)
            warnings.warn(f"mlcomp builds in a temporary folder: {problem}", CacheWarning, stacklevel=2)
    return executable.build_captured(captured, target, cache=store.process_folder(), check_indices=checks)


def _device_of(values: Sequence[Any]) -> torch.device:
    return next(x.device for x in values if isinstance(x, torch.Tensor))


def _target_on(devices: Set[str], options: Options) -> Target:
    """The target for the devices of all tensors of a graph; raises Unsupported for several or unknown devices."""
    return executable.limited(options.target or _target_of(devices), options.memory)


def _target_of(devices: Set[str]) -> Target:
    kinds = {torch.device(x).type for x in devices} or {"cpu"}
    if len(devices) > 1 or not kinds <= regions.TARGETS.keys():
        raise Unsupported("device", sorted(devices), "all tensors of a graph must be on the CPU or on one GPU")
    target = named.target(regions.TARGETS[kinds.pop()])
    if target.kind == "cuda" and not gpu_programs.on_gpu(target):
        raise Unsupported(
            "device", sorted(devices), "kernels cannot run on this GPU: CuPy is missing, or the GPU is too old"
        )
    return target


dynamo.allow_twice(mlcomp)
