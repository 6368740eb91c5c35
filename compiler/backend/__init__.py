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
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import GmWrapper, flatten_graph_inputs
from torch._functorch import config as functorch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from compiler import frontend
from compiler.backend import (
    autocast,
    autograd_node,
    complex_graphs,
    devices,
    dynamo,
    graph_cache,
    input_writes,
    messages,
    passthrough,
    quantization,
    regions,
    saved_packs,
    tangents,
)
from compiler.backend.input_writes import Boxed
from compiler.backend.options import CacheWarning as CacheWarning
from compiler.backend.options import CompiledRegion, Options, identity_of, parse_options
from compiler.backend.options import FallbackWarning as FallbackWarning
from compiler.backend.options import Report as Report
from compiler.backend.options import SpecialisationWarning as SpecialisationWarning
from compiler.backend.options import TuningWarning as TuningWarning
from compiler.backend.partition import partition
from compiler.errors import CacheError, CompilerError, MemoryLimitError, ToolchainError, Unsupported
from compiler.execution import executable, gpu_programs
from compiler.execution.tuning import command
from compiler.frontend import graphs, margins, python_kernels
from compiler.runtime import detect, garbage, gpu_memory, store
from compiler.targets.target import Target

# Runs a graph on inputs that its program refused; called with the inputs and the exception.
OnRefusal = Callable[[list[Any], Exception], Sequence[Any]]

_unusable_folders: set[str] = set()  # cache folders that cannot be used


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
    parsed = parse_options(options or {}, mode, messages.warn_of_eager)
    with garbage.paused():
        if any(isinstance(x, list | tuple | dict) for x in inputs):  # compiled autograd: a whole backward pass
            return flatten_graph_inputs(graph, inputs, functools.partial(_trace_and_compile, options=parsed))
        return _compile(graph, inputs, parsed)


def explain(function: Callable[..., Any], inputs: Sequence[Any], options: dict[str, Any]) -> list[Report]:
    """Call a function under `torch.compile` and return how each of its graphs was compiled."""
    reports: list[Report] = []
    parsed = parse_options(options, None, reports.append)
    torch._dynamo.reset()
    torch.compile(function, backend=lambda graph, examples: _compile(graph, examples, parsed))(*inputs)
    return reports


def _compile(graph: GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Compile a Dynamo graph, or load its program from the cache if an earlier process stored it."""
    entry = (
        None
        if options.tuned or options.quantize is not None
        else graph_cache.entry_path(graph, inputs, identity_of(options))
    )
    if entry is None:
        return _trace_and_compile(graph, inputs, options)
    if (cached := graph_cache.read(entry)) is not None:
        with contextlib.suppress(CompilerError):  # e.g. no g++; tracing then compiles what it can
            return _build_cached(cached, graph, options)
    cacheable: list[graph_cache.CachedGraph | None] = []

    def note_report(report: Report) -> None:
        program = report.cacheable
        cacheable.append(program and graph_cache.completed(program, inputs, len(graphs.output(graph).args[0])))
        options.on_report(report)

    compiled = _trace_and_compile(graph, inputs, replace(options, on_report=note_report))
    if len(cacheable) == 1 and cacheable[0] is not None:
        graph_cache.write(entry, cacheable[0])
    return compiled


def _trace_and_compile(graph: GraphModule | GmWrapper, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    module = graph.gm if isinstance(graph, GmWrapper) else graph

    def compile_part(
        gm: GraphModule, example_inputs: Sequence[Any], saves_results: bool = False, is_inference: bool = False
    ) -> Boxed:
        with compile_lock, _disable_current_modes():  # AOTAutograd's fake mode makes constants fake
            (packs, with_packs), given_packs = saved_packs.opened_results(gm), saved_packs.given_packs(gm)
            given, gm = gm, frontend.without_higher_order(gm)
            saved_packs.copy_marks(given, gm)
            if options.quantize is not None:
                quantization.mark_parameters(gm, inputs, saves_results)
            if (problem := input_writes.unsupported_mutation(gm)) is not None:
                return _boxed(with_packs(given_packs(_run_in_eager(gm, problem, options))))
            writes = input_writes.separate_writes(gm, saves_results)
            plain = frontend.without_dropout(frontend.with_assertions(gm))
            graphs.output(plain).meta[saved_packs.PACKED] = packs
            updates = (
                writes.written if is_inference and not writes.rebound and not frontend.has_complex(plain) else None
            )
            compile_real = functools.partial(_compile_flat_graph, options=options, updates=updates)
            run = complex_graphs.compile_as_real(
                plain, example_inputs, compile_real, options.fallback, recreate_views=is_inference
            )
            run = input_writes.with_writes(tangents.dual_in_eager(run, plain), writes)
            return _boxed(with_packs(given_packs(run)))

    # Torch copies a gradient into the strides of the result, which is wrong if elements of the result overlap.
    strides = functorch.patch(guess_tangent_strides_as_outputs=not regions.has_overlapping_result(module))
    with python_kernels.resizing_as_one_op(inputs), strides, margins.with_definitions():
        trace = functools.partial(
            aot_module_simplified,
            graph,
            inputs,
            fw_compiler=functools.partial(compile_part, saves_results=True),
            bw_compiler=dynamo.hide_backward(compile_part),
            inference_compiler=functools.partial(compile_part, is_inference=True),
            keep_inference_input_mutations=True,
            decompositions=frontend.decompositions(),
        )
        try:
            partition_graph = functools.partial(partition, for_gpu=_is_for_gpu(inputs, options))
            return autograd_node.with_plain_node(autocast.disable_in_backward(trace, partition_graph))
        except (CompilerError, TorchDynamoException):
            raise
        except Exception as problem:  # of PyTorch's own, such as a kernel for shapes that fails where eager does not
            if not options.fallback:
                raise
            count = sum(n.op.startswith("call_") for n in module.graph.nodes)
            reason = f"the graph cannot be traced: {type(problem).__name__}: {problem}".partition("\n")[0]
            options.on_report(Report(count, eager=Counter({reason: count})))
            return graph.forward


def _boxed(run: Boxed) -> Boxed:
    """Mark a function as taking its inputs as one list, which AOTAutograd may empty."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _build_cached(cached: graph_cache.CachedGraph, graph: GraphModule, options: Options) -> Callable[..., Any]:
    """Build the cached program of a graph; `trace` compiles the graph for inputs that the program refuses."""
    report = Report(cached.calls)
    with compile_lock:
        launch = _build_launch(
            cached.captured, _limited_target(torch.device(cached.device), options), options, report, cached.calls
        )
    options.on_report(report)

    def trace(inputs: Sequence[Any]) -> Callable[..., Any]:
        with compile_lock, _disable_current_modes():
            return _trace_and_compile(graph, inputs, options)

    return graph_cache.runner(cached, launch, trace)


def _is_for_gpu(inputs: Sequence[Any], options: Options) -> bool:
    if options.target is not None:
        return options.target.kind == "cuda"
    return any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs)


def _compile_flat_graph(
    graph: GraphModule, examples: Sequence[Any], options: Options, updates: tuple[int, ...] | None = None
) -> Boxed:
    """Compile a graph as one program; if only symbolic sizes prevent that, per set of sizes; otherwise in parts.

    `updates` lists the inputs that the last results are written to. None means that the program cannot be cached as a
    whole Dynamo graph.
    """
    report = Report(len(regions.calls(graph)))
    try:
        run = _compile_program(graph, options, _recompiler(graph, options), report)
        cacheable = report.regions[0].cacheable if report.regions else None
        report.cacheable = None if cacheable is None or updates is None else replace(cacheable, updates=updates)
        options.on_report(report)
        return run
    except Exception as problem:
        if any(isinstance(x, torch.SymInt) or (isinstance(x, torch.Tensor) and _is_symbolic(x)) for x in examples):
            refusals = regions.refused_calls(graph, options.target is not None)
            if not any(map(regions.is_refused_for_all_sizes, refusals)):
                messages.warn_of_sizes("sizes", problem)
                return _specialise_per_call(graph, options)
        return _compile_in_parts(graph, problem, options)


def _is_symbolic(x: torch.Tensor) -> bool:
    return not all(isinstance(n, int) for n in (*x.shape, *x.stride()))


def _compile_in_parts(graph: GraphModule, problem: Exception, options: Options) -> Boxed:
    """Compile the regions of a graph that can be compiled; run the rest in eager.

    Without a fallback, the rest may only be views; if it is not, or a region cannot be compiled, `problem` is raised.
    """
    if isinstance(problem, MemoryLimitError):
        raise problem
    report = Report(len(regions.calls(graph)))
    refusals = {} if isinstance(problem, ToolchainError) else regions.refused_calls(graph, options.target is not None)
    if not (options.fallback or (refusals and all(map(regions.is_view, refusals)))):
        raise problem
    report.eager.update(str(refusals[n]) for n in regions.calls(graph) if n in refusals)
    parts = regions.split(graph, refusals, regions.MIN_CALLS if options.fallback else 1) if refusals else None
    try:
        if parts is not None:
            run = _compile_regions(parts, options, report)
        else:
            run = _compile_halves(graph, problem, options, report)
    except Unsupported as problem_of_part:  # not a limit of memory
        raise problem from problem_of_part
    options.on_report(report)
    return run


def _compile_regions(graph: GraphModule, options: Options, report: Report) -> Boxed:
    """Compile each region that a graph calls."""

    def compile_region(region: GraphModule, _: Sequence[Any]) -> Boxed:
        return _compile_program(region, options, _recompiler(region, options), report)

    for node in list(graph.graph.nodes):
        if node.op == "call_module":
            region = getattr(graph, node.target)
            examples, count = [n.meta.get("val") for n in graphs.placeholders(region)], len(report.regions)
            try:
                run = complex_graphs.compile_as_real(region, examples, compile_region, fallback=False)
                counted = [replace(r, calls=len(regions.calls(region))) for r in report.regions[count:]]
                report.regions[count:] = counted  # count calls before complex numbers were split into parts
            except Exception as problem:
                run = _compile_halves(region, problem, options, report)
            setattr(graph, node.target, regions.Region(run))
    return lambda inputs: graph.forward(*inputs)


def _compile_halves(graph: GraphModule, problem: Exception, options: Options, report: Report) -> Boxed:
    """Compile the halves of a graph that fails although no call is refused; run it in eager if no attempt is left."""
    if not options.fallback or isinstance(problem, MemoryLimitError):
        raise problem
    count = len(regions.calls(graph))
    if count < 2 * regions.MIN_CALLS or not report.attempts or isinstance(problem, ToolchainError):
        report.eager[messages.describe_problem(problem)] += count
        return lambda inputs: graph.forward(*inputs)
    report.attempts -= 1
    return _compile_regions(regions.halves(graph), options, report)


def _run_in_eager(graph: GraphModule, problem: Exception, options: Options) -> Boxed:
    if not options.fallback:
        raise problem
    count = len(regions.calls(graph))
    options.on_report(Report(count, eager=Counter({messages.describe_problem(problem): count})))
    return lambda inputs: graph.forward(*inputs)


def _specialise_per_call(graph: GraphModule, options: Options) -> Boxed:
    """Compile a graph per set of sizes and strides; if that fails too, run it in eager."""
    compiled: dict[tuple[Any, ...], Boxed] = {}
    offsets = passthrough.required_offsets(graphs.placeholders(graph), frontend.offsets(graph))

    def run(inputs: list[Any]) -> Sequence[Any]:
        key = tuple((x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs)
        key += tuple(inputs[k].storage_offset() for k in offsets)
        if key not in compiled:
            with compile_lock, _disable_current_modes():
                compiled[key] = _specialise(graph, inputs, options)
        return compiled[key](inputs)

    return run


def _specialise(graph: GraphModule, inputs: list[Any], options: Options) -> Boxed:
    eager_runs: list[Boxed] = []

    def run_in_eager(inputs: list[Any], problem: Exception) -> Sequence[Any]:
        if not eager_runs:
            eager_runs.append(_run_in_eager(graph, _Refused(str(problem)), options))
        return eager_runs[0](inputs)

    try:
        static_graph = frontend.specialised(graph, inputs)
        quantization.copy_marks(graph, static_graph)
        saved_packs.copy_marks(graph, static_graph)
    except Exception as problem:
        return _run_in_eager(graph, problem, options)
    try:
        return _compile_program(static_graph, options, run_in_eager, Report(0))
    except Exception as problem:
        return _compile_in_parts(static_graph, problem, options)


def _recompiler(graph: GraphModule, options: Options) -> OnRefusal:
    """Recompile a graph for arguments whose strides differ from those that torch assumed; run batches in eager."""
    recompiled: list[Boxed] = []

    def recompile(inputs: list[Any], problem: Exception) -> Sequence[Any]:
        if tangents.has_batch(inputs):
            return graph.forward(*inputs)  # type: ignore[no-any-return]
        if not recompiled:
            messages.warn_of_sizes("arguments", _Refused(str(problem)))
            recompiled.append(_specialise_per_call(graph, options))
        arguments = [x.resolve_neg() if type(x) is torch.Tensor and x.layout is torch.strided else x for x in inputs]
        return recompiled[0](arguments)

    return recompile


# One graph ------------------------------------------------------------------------------------------------------------


def _compile_program(graph: GraphModule, options: Options, on_refusal: OnRefusal, report: Report) -> Boxed:
    """Compile a graph as one program. Results that are inputs or views of inputs are made outside of it."""
    opened, origins, input_packs = saved_packs.opened_inputs(graph)
    placeholders = graphs.placeholders(opened)
    outputs = list(graphs.output(opened).args[0])
    computed = list(dict.fromkeys(n for n in outputs if isinstance(n, Node) and not passthrough.is_passed_on(n)))
    if not any(isinstance(n.meta.get("val"), torch.Tensor) for n in computed):
        return lambda inputs: graph.forward(*inputs)
    reduced = frontend.with_results(opened, computed, drop=True)
    input_values, result_values = ([n.meta.get("val") for n in x] for x in (graphs.placeholders(reduced), computed))
    device = devices.common_device(input_values, result_values)
    target = _limited_target(device, options)
    destinations = {
        computed.index(x): placeholder.name
        for x, placeholder in _written_results(opened)
        if outputs.count(x) == 1 and x in computed
    }
    captured, taken_names = quantization.quantized(
        frontend.from_graph(reduced, into=destinations), reduced, options.quantize
    )
    captured = replace(captured, guards=())  # Dynamo checks what torch assumed about sizes before each call
    taken_positions = [k for k, n in enumerate(placeholders) if n.name in taken_names]
    examples = {k: placeholders[k].meta.get("val") for k in taken_positions}
    size_positions = [k for k, x in examples.items() if isinstance(x, torch.SymInt)]
    numbers = [origins[k] for k, x in examples.items() if devices.is_number(x) and x.device != device]
    offsets = passthrough.required_offsets(placeholders, frontend.offsets(reduced))
    offsets = {origins[k]: offset for k, offset in offsets.items()}
    cacheable = None
    is_plain = not size_positions and not offsets and not numbers
    if is_plain and set(outputs) <= set(computed) and graph_cache.is_cacheable(captured):
        result_positions = tuple(map(computed.index, outputs))
        cacheable = graph_cache.CachedGraph(
            captured, str(device), len(regions.calls(graph)), tuple(taken_positions), result_positions
        )
    captured, sources = saved_packs.captured_with_packs(
        captured, saved_packs.packs_of(opened, outputs, computed), input_packs, taken_positions, origins
    )
    launch = _build_launch(captured, target, options, report, len(regions.calls(graph)), cacheable)
    unit = torch.zeros(1, dtype=torch.uint8, device=device) if size_positions else None
    takes_all_inputs = sources == [*range(len(placeholders))] and not size_positions
    assemble = None if outputs == computed else passthrough.result_assembler(outputs, computed, placeholders)

    def arguments(inputs: list[Any]) -> list[Any]:
        if unit is None:
            return [None if k is None else inputs[k] for k in sources]
        # A size is passed as the shape of an expanded tensor. No shape is negative; 0 is refused too, as no program is
        # compiled for it.
        return [unit.expand(max(inputs[k], 0)) if k in size_positions else inputs[k] for k in taken_positions]

    def run(inputs: list[Any]) -> Sequence[Any]:
        try:
            passthrough.check_offsets(inputs, offsets)
            given = devices.moved_numbers(inputs, numbers, device) if numbers else inputs
            results = launch(*given) if takes_all_inputs else launch(*arguments(given))
        except (TypeError, ValueError) as problem:
            return on_refusal(inputs, problem)
        if assemble is None:
            return results
        return assemble([inputs[k] for k in origins] if input_packs else inputs, results)

    return run


def _build_launch(
    captured: frontend.Captured,
    target: Target,
    options: Options,
    report: Report,
    calls: int,
    cacheable: graph_cache.CachedGraph | None = None,
) -> Callable[..., Sequence[Any]]:
    """Build the program of a region of `calls` calls, report it, and return its launch function."""
    program = _build(captured, target, options.check_indices, options.tuned)
    report.regions.append(CompiledRegion(calls, program.names, program.code, cacheable))
    has_memory_pool = options.memory_pool is not None and target.kind == "cuda" and gpu_programs.on_gpu(target)
    if options.memory_pool is None or not has_memory_pool:
        return program.launch
    return gpu_memory.with_memory_pools(program.launch, options.memory_pool)


def _written_results(graph: GraphModule) -> list[tuple[Node, Node]]:
    """The results of a graph that are written to inputs, each with the placeholder of its input."""
    output = graphs.output(graph)
    return [(output.args[0][n], placeholder) for n, placeholder in output.meta.get(input_writes.INTO, {}).items()]


def _build(captured: frontend.Captured, target: Target, checks: str, tuned: bool) -> executable.Executable:
    """Build a program in the cache, or in a temporary folder if the cache cannot be used.

    With `tuned`, kernels that have no stored schedule are tuned first.
    """
    folder = str(detect.default_cache(os.environ))
    if folder not in _unusable_folders:
        try:
            for outcome in command.tune_missing(captured, target, Path(folder)) if tuned else ():
                if outcome.problem:
                    warnings.warn(f"not tuned: {outcome.name}: {outcome.problem}", TuningWarning, stacklevel=2)
            return executable.build_captured(captured, target, check_indices=checks)
        except CacheError as problem:
            _unusable_folders.add(folder)
            warnings.warn(f"mlcomp builds in a temporary folder: {problem}", CacheWarning, stacklevel=2)
    return executable.build_captured(captured, target, cache=store.process_folder(), check_indices=checks)


def _limited_target(device: torch.device, options: Options) -> Target:
    """The target for the tensors of a graph, unless the options name one, with their limit of memory."""
    return executable.with_memory_limit(options.target or devices.target_for(device), options.memory_limit)


dynamo.allow_reregistration(mlcomp)
