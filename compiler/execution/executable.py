"""Execution of captured programs: one stage by its executor, or compiled to a function of tensors."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compiler import frontend, pipeline
from compiler.errors import CompilerError, InvalidData, UncheckedWarning
from compiler.execution import buffers, gpu_programs, mlir, named, stored, triton, views
from compiler.execution.cpp_flags import flags
from compiler.execution.dynamic import AnySize
from compiler.execution.tuning import shelf
from compiler.interpret import kernel as kernel_interpreter
from compiler.interpret import loop as loop_interpreter
from compiler.interpret import tensor as tensor_interpreter
from compiler.interpret import tile as tile_interpreter
from compiler.interpret.bounded import Accuracy
from compiler.ir import aten
from compiler.ir.expr import Op, Size
from compiler.ir.node import digest
from compiler.ir.sizes import numbers
from compiler.ir.tensor import Program as TensorProgram
from compiler.ir.tile import Mma
from compiler.passes.tensor.round_stored import rounded_in, with_rounded
from compiler.passes.torch_to_tensor import lower as torch_to_tensor
from compiler.pipeline import Lowering
from compiler.render import cpp, header
from compiler.runtime import build, detect, garbage, guarded, launcher, packs, workers
from compiler.schedule.records import NOTHING, Stored
from compiler.schedule.steps import Schedule
from compiler.targets.accuracy import COARSE, THREEFOLD
from compiler.targets.target import Target

HEADERS = Path(__file__).parents[1] / "render" / "cpp"
WIDENED = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
# When a GPU reports invalid data; "off" disables the checks, on every target.
CHECKS = ("async", "sync", "off")
UNCHECKED = (
    'check_indices="off": an index, target or divisor that is not valid is not noticed: it gives any result, and reads '
    "or writes any memory of the process"
)


def assembly(lowering: Lowering) -> str:
    """The assembly that the C++ compiler generates from the text."""
    return build.assembly(lowering.stages["cpp"], flags(lowering.target), include=(HEADERS,))


# ---- one stage


def execute(
    lowering: Lowering, stage: str, inputs: Sequence[torch.Tensor], cache: Path | None = None
) -> tuple[torch.Tensor, ...]:
    """Execute one stage of a lowered program and return its outputs.

    `inputs` are the program's inputs in its order, constants included. Raises KeyError for a stage that was not reached
    and, for invalid indices, targets and divisors, the exception that eager raises.
    """
    try:
        return _execute_stage(lowering, stage, inputs, cache)
    except InvalidData:
        frontend.refuse(lowering.stages["torch"], inputs)
        raise


def _execute_stage(
    lowering: Lowering, stage: str, inputs: Sequence[torch.Tensor], cache: Path | None
) -> tuple[torch.Tensor, ...]:
    program = lowering.stages[stage]
    sizes = buffers.sizes_of(lowering, inputs)
    if stage == "torch":
        return tuple(frontend.execute(program, list(inputs)))
    if stage in ("cpp", "mlir"):
        return _run_text(lowering, inputs, buffers.plan(lowering, sizes), cache)
    if stage == "triton" or (lowering.target.kind == "cuda" and stage in gpu_programs.STAGES):
        outcome = execute_guarded(lowering, inputs, runs=1, cache=cache, stage=stage)
        if outcome.complaints == (guarded.INVALID,):
            raise InvalidData
        if outcome.complaints:
            raise CompilerError("\n".join(outcome.complaints))
        return outcome.outputs
    arrays = [to_array(t) for t in inputs]
    match stage:
        case "tensor":
            results = tensor_interpreter.run(program, arrays)
        case "loop":
            results = loop_interpreter.run(program, arrays, cache)
        case "tile":
            results = tile_interpreter.run(program, arrays)
        case _:
            results = kernel_interpreter.run(program, arrays)
    types = buffers.output_types(lowering)
    return tuple(to_tensor(a, t, sizes) for a, t in zip(results, types, strict=True))


def headers(machine: Target) -> dict[str, str]:
    """The headers that emitted texts may include, by name."""
    folder = HEADERS if machine.kind == "cpu" else gpu_programs.HEADERS
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cuh"))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def build_text(lowering: Lowering, cache: Path | None) -> Path:
    """Build the text as a shared object; raises CompilerError if this machine cannot run it."""
    if lowering.target.kind == "mlir":
        return mlir.build_text(lowering, cache)
    check_runnable(lowering.target)
    return build.build(lowering.stages["cpp"], flags(lowering.target), cache=cache, include=(HEADERS,), split=cpp.parts)


def check_runnable(machine: Target) -> None:
    """Raise CompilerError if this machine lacks features of a CPU target."""
    if lacking := named.missing(machine):
        raise CompilerError(
            f"this machine cannot run code for {machine.name}: it has no {', '.join(lacking)}; "
            "`mlcomp show` can still print the code"
        )


def to_array(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as the interpreters represent it: dtypes that NumPy lacks become f32."""
    t = t.detach()
    return np.asarray(t.float().numpy() if t.dtype in WIDENED else t.numpy())


def to_tensor(a: np.ndarray[Any, Any], kind: aten.Type, sizes: Mapping[Size, int]) -> torch.Tensor:
    """The inverse of `to_array`, with the dtype and shape that the program declares."""
    made = torch.from_numpy(np.array(a, order="C", copy=True))
    return made.to(frontend.torch_dtype(kind.dtype)).reshape(numbers(kind.shape, sizes))


def _run_text(
    lowering: Lowering, inputs: Sequence[torch.Tensor], planned: launcher.Plan, cache: Path | None
) -> tuple[torch.Tensor, ...]:
    """Run the text on poisoned outputs and temporaries, so that elements that it does not write are visible."""
    path = build_text(lowering, cache)
    sizes = buffers.sizes_of(lowering, inputs)
    outputs = [poisoned(b) for b in planned.outputs]
    temps = [poisoned(b) for b in buffers.temporaries(lowering, sizes)]
    launcher.run_once(path, [*inputs, *outputs, *temps], planned.sizes, threads=torch.get_num_threads())
    return tuple(outputs)


def execute_guarded(
    lowering: Lowering,
    inputs: Sequence[torch.Tensor],
    runs: int = 3,
    patience: float = 0.0,
    cache: Path | None = None,
    *,
    stage: str = "",
    emulate: bool = False,
    apart: bool = False,
    check: bool = False,
) -> guarded.Outcome:
    """Run a text several times on the same buffers between guard zones; with `patience`, in a process of its own.

    `stage` defaults to the target's text. GPU targets also accept `kernel`, which the emulator runs with its checks, as
    it does the text with `check`. `emulate` runs the text in the emulator even if there is a GPU; a process of its own
    requires that. `apart` makes each buffer a separate allocation on the GPU and keeps line information in the code,
    for tools such as compute-sanitizer.
    """
    sizes = buffers.sizes_of(lowering, inputs)
    planned, unthreaded, kind = buffers.plan(lowering, sizes), None, lowering.target.kind
    if kind == "cuda":
        inputs = gpu_programs.aligned(inputs)
        emulate = emulate or bool(patience)
        call = gpu_programs.caller(lowering, stage or "cuda", planned, cache, emulate=emulate, apart=apart, check=check)
    elif kind == "triton":
        call = triton.guarded_call(lowering, planned)
    else:
        call, unthreaded = guarded.entries(build_text(lowering, cache), planned.sizes, patience, kind == "cpu")
    return guarded.run(call, planned, inputs, buffers.temporaries(lowering, sizes), runs, patience, unthreaded)


def reference(program: aten.Program, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Evaluate Torch IR with all floating dtypes in f64."""
    return frontend.execute(program, inputs, torch.float64)


def accuracy(lowering: Lowering) -> Accuracy:
    """The accuracy of a lowered program's executors, given its kind of target and the instructions that it uses."""
    program = lowering.stages.get("tile")
    nodes = [n for f in program.kernels for s in f.body for n in s.walk()] if program is not None else []
    used = {n.name for n in nodes if isinstance(n, Op)}
    instruction_names = {n.instruction for n in nodes if isinstance(n, Mma)}
    instructions = [row for row in lowering.target.instructions if row.name in instruction_names]
    coarse, flushes = any(row.coarse for row in instructions), any(row.flushes for row in instructions)
    kind = "tosa" if "tosa" in lowering.target.features else lowering.target.kind
    threefold = "tf32" in used or "tf32x3" in lowering.stages.get("triton", "")
    terms = THREEFOLD if threefold else 0.0, "exp2_ftz" in used, COARSE if coarse else 0.0
    return Accuracy.of(kind, *terms, flushes)


def own_equations(lowering: Lowering, program: TensorProgram) -> TensorProgram:
    """The program's own Tensor IR, with the roundings that its kernels apply when storing for others; the bounds of our
    own errors are derived from it."""
    equations = lowering.stages.get("tensor")
    return program if equations is None else with_rounded(program, rounded_in(equations))


def eager_equations(program: aten.Program) -> TensorProgram:
    """Tensor IR that rounds after every call, as eager does; eager's own error bounds are derived from it."""
    return torch_to_tensor.lower(program, round_every_call=True)


def poisoned(buffer: launcher.Buffer) -> torch.Tensor:
    """A tensor filled with NaN, or with bytes 0x7f, so that unwritten elements are visible."""
    out = torch.empty_strided(buffer.shape, buffer.stride, dtype=launcher.DTYPES[buffer.dtype])
    if out.is_floating_point():
        return out.fill_(float("nan"))
    if out.dtype is torch.bool:
        return out.fill_(True)
    return out.fill_(int.from_bytes(b"\x7f" * out.element_size(), "little"))


# ---- compiled functions


class Executable:
    """A compiled function: call it like the original function, on tensors of the same dtypes and shapes.

    `source` is the emitted text and `digest` its digest. `kernels` is the number of launches per call and `names` their
    names. `code` has the last stages, as far as a call needs them; `lowering` has all stages, and is computed on first
    use if the code came from the cache. `emulated` is true if the text is for a GPU and runs in the emulator.
    """

    def __init__(
        self,
        captured: frontend.Captured,
        code: Lowering,
        call: Callable[..., tuple[torch.Tensor, ...]],
        lower: Callable[[], Lowering],
    ) -> None:
        self.captured, self.code, self.launch, self._lower = captured, code, call, lower
        kind = code.target.kind
        self.source: str = code.stages[pipeline.TEXTS[kind]]
        self.emulated = kind == "cuda" and not gpu_programs.on_gpu(code.target)
        self.digest = digest(self.source)
        self.names = tuple(f.name for f in code.stages["kernel"].functions) if "kernel" in code.stages else (kind,)
        self.kernels = len(self.names)
        self._simple = captured.structure.num_leaves == 1 and captured.structure.is_leaf()

    @functools.cached_property
    def lowering(self) -> Lowering:
        return self._lower()

    def __call__(self, *inputs: torch.Tensor) -> Any:
        made = self.launch(*inputs)
        return made[0] if self._simple else self.captured.rebuild(made)


def compile(
    function: Callable[..., Any] | frontend.Captured,
    inputs: Sequence[Any] = (),
    target: Target | str = "cpu",
    *,
    constants: Sequence[int] = (),
    schedules: Mapping[str, Schedule] | None = None,
    cache: Path | None = None,
    threads: int = 0,
    dynamic_shapes: Any = None,
    check_indices: str = "async",
    quantize: str | None = None,
    memory_limit: int | None = None,
) -> Executable:
    """Compile a function for inputs of the shapes, dtypes and strides of `inputs`.

    `function` may also be a Captured program, such as that of `from_onnx`, which needs no inputs. `constants` are the
    positions of inputs that are weights: their values are fixed. `target` is a target or its name. `schedules` maps
    names of kernels to schedules that replace the heuristic's.

    `dynamic_shapes` declares dynamic sizes as for `torch.export.export`: for each input None or a dict from axes to
    `torch.export.Dim`, in a list, or in a dict by the names of the function's parameters. The code is correct for all
    sizes in the ranges of these, and is not recompiled.

    For a GPU target the executable takes CUDA tensors; without a GPU it takes CPU tensors and runs emulated, slowly. A
    `torch.cuda.CUDAGraph` may capture its calls; keep the executable alive as long as the graph, which uses its code.

    Invalid indices, targets and integer divisors raise the exception that eager raises. On a GPU the exception comes
    from the next call, as InvalidData, unless `check_indices` is "sync". With "off" nothing is checked: an invalid
    index gives an arbitrary result and reads or writes arbitrary memory of the process.

    `quantize` is one of `passes.quantize.MODES`; the weights of matmuls are quantized now. `memory_limit` is the limit
    for temporaries in bytes; kernels are ordered to need less memory. `cache` is the folder of built kernels (default:
    by the environment, see MLCOMP_CACHE). `threads` is the number of CPU threads; 0 means torch's.

    Raises Unsupported for an op that mlcomp does not support, MemoryLimitError if temporaries exceed the limit,
    ScheduleError for an illegal step in `schedules`, and CompilerError for other errors.
    """
    with garbage.paused():
        if isinstance(function, frontend.Captured):
            captured = function
        else:
            captured = frontend.capture(function, inputs, constants, dynamic_shapes=dynamic_shapes)
        captured = captured if quantize is None else quantized(captured, quantize)
        return build_captured(
            captured, with_memory_limit(_target_named(target), memory_limit),
            schedules=schedules, cache=cache, threads=threads, check_indices=check_indices,
        )  # fmt: skip


def with_memory_limit(machine: Target, memory_limit: int | None) -> Target:
    """A target with a memory limit in bytes; raises CompilerError if the limit is not a positive int."""
    if memory_limit is None:
        return machine
    if not isinstance(memory_limit, int) or memory_limit <= 0:
        raise CompilerError(f"memory_limit must be a number of bytes, at least 1, not {memory_limit!r}")
    return machine.replace(memory=memory_limit)


def quantized(captured: frontend.Captured, mode: str) -> frontend.Captured:
    """Quantize the matmuls by weights; raises CompilerError if the program has none that can be quantized."""
    quantized_program = frontend.quantized(captured, mode)
    if quantized_program.program is captured.program:
        raise CompilerError(f"quantize={mode!r}: the program has no matmul with a weight that can be quantized")
    return quantized_program


def build_captured(
    captured: frontend.Captured,
    target: Target | str = "cpu",
    *,
    schedules: Mapping[str, Schedule] | None = None,
    cache: Path | None = None,
    threads: int = 0,
    check_indices: str = "async",
) -> Executable:
    """The second half of `compile`: build an executable from a captured program."""
    if check_indices not in CHECKS:
        raise CompilerError(f"check_indices must be one of {', '.join(CHECKS)}, not {check_indices!r}")
    machine = _target_named(target)
    if check_indices == "off":
        warnings.warn(UNCHECKED, UncheckedWarning, stacklevel=2)
        machine = machine.replace(checked=False)
    folder = cache if cache is not None else detect.default_cache(os.environ)
    with garbage.paused():
        schedule_items = tuple(sorted((schedules or {}).items()))
        records = shelf.stored(folder, machine.name, gpu_programs.device_of(machine))
        code = _stages_to_run(captured.program, machine, schedule_items, folder, records)
    wait = check_indices == "sync"
    return _make_executable(
        captured, code, lambda: lowered(captured.program, machine, schedule_items, records), threads, folder, wait
    )


def _make_executable(
    captured: frontend.Captured,
    code: Lowering,
    lower: Callable[[], Lowering],
    threads: int,
    folder: Path,
    wait: bool = False,
) -> Executable:
    names = [i.name for i in captured.program.inputs]
    constants = {names.index(name): value for name, value in captured.constants.items()}
    return Executable(captured, code, _make_launcher(captured, code, constants, threads, folder, wait), lower)


def rebuild(like: Executable, text: str, *, cache: Path | None = None, threads: int = 0) -> Executable:
    """Build a text that was emitted earlier for the same program as `like`, and return it as an executable.

    The text's header states its launches. Raises CompilerError for a text without a header, or with other buffers.
    """
    code, captured = like.code, like.captured
    try:
        parsed = header.parse(text)
    except ValueError as problem:
        raise CompilerError(f"the text cannot be launched: {problem}") from problem
    text_buffers, program_buffers = (
        [[(t.dtype, t.shape, t.strides) for t in tensors] for tensors in (p.inputs, p.outputs)]
        for p in (parsed, code.stages["kernel"])
    )
    if text_buffers != program_buffers:
        raise CompilerError("the text takes other buffers than the program")
    stages = {"torch": captured.program, "kernel": parsed, pipeline.TEXTS[code.target.kind]: text}
    lowering = Lowering(stages, code.target, {})
    folder = cache if cache is not None else detect.default_cache(os.environ)
    return _make_executable(captured, lowering, lambda: lowering, threads, folder)


def _make_launcher(
    captured: frontend.Captured,
    lowering: Lowering,
    bound: Mapping[int, torch.Tensor],
    threads: int,
    folder: Path,
    wait: bool,
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function that calls the code; buffers are planned now or, for symbolic sizes, at the first call with them."""

    def refuse(*arguments: torch.Tensor) -> None:
        remaining = iter(arguments)
        inputs = {n: bound[n] if n in bound else next(remaining) for n in range(len(captured.program.inputs))}
        layouts = [buffers.buffer(i, {}) for i in buffers.inputs_of(lowering) if captured.packed_inputs]
        frontend.refuse(captured.program, [*packs.with_pieces(inputs, captured.packed_inputs, layouts).values()])

    if lowering.target.kind == "cuda":
        load = gpu_programs.loader(lowering, bound, threads, folder, refuse, wait)
    elif lowering.target.kind == "triton":
        load = triton.loader(lowering, bound, refuse)
    else:
        path = build_text(lowering, folder)

        def load(planned: launcher.Plan) -> launcher.Launcher:
            return launcher.load(path, planned, constants=bound, threads=threads, cache=folder, invalid=refuse)

    def load_for(sizes: Mapping[Size, int]) -> launcher.Launcher:
        captured.check(sizes)
        overwritten = buffers.overwritten(lowering)
        written = tuple(sorted(overwritten.items()))
        planned = replace(buffers.plan(lowering, sizes), written=written, packed_inputs=captured.packed_inputs)
        if captured.views is None:
            return load(planned)
        outputs = list(planned.outputs)
        for n, k in written:
            outputs.insert(n, planned.inputs[k])
        described = outputs, captured.views, sizes, frozenset(overwritten)
        packed_outputs, within = views.packed_outputs(captured.packed_results, *described)
        launch = load(replace(planned, packed_outputs=packed_outputs))
        return views.with_views(launch, *described, within)

    symbolic_sizes = captured.program.sizes
    if not symbolic_sizes:
        return load_for({})
    declared = [(i.name, i.type.shape) for n, i in enumerate(captured.program.inputs) if n not in bound]

    return AnySize(symbolic_sizes, declared, load_for)


def _target_named(which: Target | str) -> Target:
    return named.target(which) if isinstance(which, str) else which


@functools.lru_cache(maxsize=1024)
def lowered(
    program: aten.Program, machine: Target, schedules: tuple[tuple[str, Schedule], ...] = (), records: Stored = NOTHING
) -> Lowering:
    """The program at every stage down to text, cached by its text."""
    workers.start(len(program.calls))
    return pipeline.lower(program, machine, dict(schedules) or None, stored=records, each=workers.each)


@functools.lru_cache(maxsize=1024)
def _stages_to_run(
    program: aten.Program, machine: Target, schedules: tuple[tuple[str, Schedule], ...], folder: Path,
    records: Stored = NOTHING,
) -> Lowering:  # fmt: skip
    """The stages that running the program needs. Emulators and text targets need all, which are not in the cache."""
    lower = functools.partial(lowered, program, machine, schedules, records)
    if machine.kind in ("mlir", "triton") or (machine.kind == "cuda" and not gpu_programs.on_gpu(machine)):
        return lower()
    if machine.kind == "cuda":
        gpu_programs.prepare(folder)
    lowering = stored.code(program, machine, schedules, folder, lower, records.digest)
    for x in lowering.fallbacks if records.records else ():
        warnings.warn(f"kernel {x.kernel}: {x.reason}", stacklevel=2)
    return lowering


def difference(ours: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> float:
    """The largest absolute difference between results; infinite if only one of them is NaN."""
    worst = 0.0
    for a, b in zip(ours, eager, strict=True):
        if b.numel():
            x, y = a.double(), b.double()
            same = (x == y) | (x.isnan() & y.isnan())
            distance = torch.where(same, 0.0, (x - y).abs())
            worst = max(worst, float(distance.nan_to_num(nan=float("inf")).max()))
    return worst
