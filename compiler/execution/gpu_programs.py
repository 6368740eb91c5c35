"""Run a program lowered for threads, on a GPU or in the emulator: its launches, its text, its function of tensors."""

from __future__ import annotations

import functools
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from compiler.errors import CompilerError
from compiler.execution.buffers import Sizes
from compiler.ir import kernel as k
from compiler.ir.sizes import numbers
from compiler.ir.tensor import memory_order
from compiler.passes.gpu.dependent_launch import overlaps
from compiler.pipeline import Lowering
from compiler.render import cuda, header
from compiler.render.c import has_requirements
from compiler.runtime import cubin, detect, device, gpu, gpu_native, guarded, launcher, triton
from compiler.runtime.emulator import emulator
from compiler.runtime.emulator.findings import Report
from compiler.runtime.guarded import Bytes
from compiler.runtime.launcher import Launcher, Plan
from compiler.runtime.launches import Buffer, Extent, Flag, Launch, LaunchPlan, Map, Size
from compiler.runtime.tensor_map import BASE_ALIGNMENT
from compiler.targets.target import Target

HEADERS = Path(__file__).parents[1] / "render" / "cuda"
STAGES = ("kernel", "cuda")  # stages that run as launches
RUN_TIMEOUT = 30.0  # the timeout of a run on a GPU, in seconds
_ALIGNMENT = 64  # buffers keep their tensors' offset from multiples of this many bytes
# Device functions whose threads act independently.
_INDEPENDENT_FUNCTIONS = frozenset(
    """
    mlc_load mlc_load_keep mlc_load_once mlc_load_where mlc_store mlc_store_global mlc_store_once mlc_scaled_halves
    mlc_widened mlc_wait_dependencies mlc_launch_dependents mlc_prefetch_l2
    """.split()  # noqa: SIM905
)


# ---- launches


def launches(program: k.Program, plan: Plan) -> LaunchPlan:
    """The launches of the functions of `program`, on the buffers of `plan`; empty grids are left out."""
    sizes = dict(zip(program.sizes, plan.sizes, strict=True))
    temps = tuple(
        Buffer(t.name, guarded.temporary_size(numbers(t.shape, sizes), numbers(t.strides, sizes), t.dtype.bytes))
        for t in program.temps
    )
    positions = {t.name: n for n, t in enumerate((*program.inputs, *program.outputs, *program.temps))}
    out = []
    for f, name in zip(program.functions, cuda.names(program), strict=True):
        grid = _extent(numbers(f.grid, sizes))
        if all(grid):
            args: list[int | Size | Map | Flag] = [positions[p.name] for p in f.params]
            args += [Size(n) for n in plan.sizes]
            args += [_tensor_map(m, f, positions[m.buffer], sizes) for m in f.maps]
            args += [Flag()] * has_requirements(f.body)
            shared, block, cluster = k.dynamic_shared(f)[1], _extent(f.block), (f.cluster, 1, 1)
            out.append(Launch(name, grid, block, tuple(args), shared, cluster, _has_barriers(f), overlaps(f)))
    return LaunchPlan(
        tuple(map(_buffer, plan.inputs)), tuple(map(_buffer, plan.outputs)), tuple(out), temps, plan.temporaries,
        plan.arena, plan.zeros,
    )  # fmt: skip


def _extent(sizes: tuple[int, ...]) -> Extent:
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


def _tensor_map(m: k.TensorMap, f: k.Function, number: int, sizes: Sizes) -> Map:
    """A tensor map of a whole parameter, innermost axis first."""
    t = next(p for p in f.params if p.name == m.buffer)
    axes = memory_order(t)[::-1]
    shape, steps = numbers(t.shape, sizes), numbers(t.strides, sizes)
    dims = tuple(shape[d] for d in axes)
    # The copy engine demands an aligned stride even of an axis of one element.
    unit_axes = {d for d in axes[1:] if shape[d] == 1}
    strides = tuple(BASE_ALIGNMENT if d in unit_axes else steps[d] * t.dtype.bytes for d in axes)
    return Map(number, t.dtype.name, dims, strides, m.box, m.swizzle, m.steps)


def _buffer(b: launcher.Buffer) -> Buffer:
    return Buffer(b.name, guarded.size(b))


def _has_barriers(f: k.Function) -> bool:
    """Whether threads wait for each other or exchange values, which any given text may do."""
    return header.is_launch(f) or any(
        isinstance(n, k.Barrier | k.Together)
        or (isinstance(n, k.Array) and n.space == "shared")
        or (isinstance(n, k.Call) and n.function not in _INDEPENDENT_FUNCTIONS)
        for n in f.walk()
    )


# ---- where to run


def on_gpu(target: Target) -> bool:
    """Whether a GPU of this machine runs the target's text."""
    return triton.on_gpu() if target.kind == "triton" else architecture(target) is not None


def tensors_on(machine: Target) -> str:
    """The torch device type of a target's tensors: "cuda" on a GPU, "cpu" otherwise, even if the GPU is emulated."""
    return "cuda" if on_gpu(machine) else "cpu"


@functools.cache
def device_of(target: Target) -> str:
    """The name of the device that runs a target's code here; empty if there is none."""
    if target.kind == "cpu":
        return detect.cpu().model or platform.machine()
    return str(torch.cuda.get_device_name()) if on_gpu(target) else ""


def place_of(target: Target) -> str:
    """The device that runs a target's code here, told from others of its name; empty if there is none."""
    name = device_of(target)
    if not name or target.kind == "cpu":
        return name
    return f"{name} {torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def equal_gpus(target: Target) -> tuple[str, ...]:
    """The GPUs of this machine that have the name of the one that runs a target's code, which is the first.

    Each is an entry for CUDA_VISIBLE_DEVICES; empty if no GPU runs the code.
    """
    name = device_of(target) if target.kind == "cuda" else ""
    count = torch.cuda.device_count() if name else 0
    visible = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    entries = visible if len(visible) == count else [str(n) for n in range(count)]
    return tuple(entry for n, entry in enumerate(entries) if torch.cuda.get_device_name(n) == name)


def architecture(target: Target) -> str | None:
    """The architecture to compile the target's text for, so that this machine's GPU runs it; None if it cannot.

    The text for an older GPU is compiled for this one: sm_80 runs as sm_90 on an H200.
    """
    gpus = device.devices() if target.kind == "cuda" else ()
    if not gpus:
        return None
    number, specific = target.name.removeprefix("sm_").removesuffix("a"), target.name.endswith("a")
    major, minor = gpus[0].capability
    if int(number) > 10 * major + minor or (specific and int(number) != 10 * major + minor):
        return None
    return f"sm_{major}{minor}{'a' if specific else ''}"


def text(lowering: Lowering, stage: str) -> str:
    """The text that runs the program of a stage."""
    if stage == "cuda":
        return str(lowering.stages["cuda"])
    return cuda.render(lowering.stages[stage], target=lowering.target.name)


def caller(
    lowering: Lowering,
    stage: str,
    plan: Plan,
    cache: Path | None = None,
    *,
    emulate: bool = False,
    apart: bool = False,
    check: bool = False,
) -> guarded.Call:
    """A guarded call of a stage: `kernel` in the emulator with its checks; `cuda` on the GPU if there is one, or with
    `check` like `kernel`.

    The emulator orders threads and blocks differently in each run, and its findings are complaints. On a GPU the
    buffers are parts of one allocation; with `apart`, each is an allocation, and the code has line information.
    """
    source, launch_plan = text(lowering, stage), launches(lowering.stages["kernel"], plan)
    check = check or stage == "kernel"
    if not (check or emulate) and (arch := architecture(lowering.target)) is not None:
        parts = [source] if apart else cuda.parts(source)  # tools report lines of the whole text
        code = cubin.build_cubins(parts, arch, cubin.kernel_flags(line_info=apart), include=(HEADERS,), cache=cache)
        return _gpu_call(code, launch_plan, apart)
    path = emulator.build(source, (HEADERS,), check, cache)
    threads = torch.get_num_threads()

    def call(memory: Bytes, offsets: Sequence[int], number: int) -> Sequence[str]:
        pointers = [memory.ctypes.data + offset for offset in offsets]
        result = emulator.run_pointers(path, launch_plan, pointers, check, number, threads=threads)
        return [*map(_finding_line, result.reports), *([guarded.INVALID] * result.invalid)]

    return call


def _finding_line(report: Report) -> str:
    """A finding with its place in the text, in the format of compilers."""
    return f"kernel.cu:{report.line}: {report}"


def _gpu_call(cubins: tuple[cubin.Cubin, ...], launch_plan: LaunchPlan, apart: bool) -> guarded.Call:
    """A call that copies the memory to the GPU before a run and back after it: in one piece, or with `apart` each
    buffer by itself."""
    kernels = gpu.Kernels(device.driver(torch.cuda.current_device()), cubins, launch_plan)
    sizes = [b.size for b in launch_plan.buffers]

    def call(memory: Bytes, offsets: Sequence[int], number: int) -> Sequence[str]:
        # A separate buffer keeps its offset from a multiple of 64 bytes.
        starts = [offset - offset % _ALIGNMENT for offset in offsets] if apart else [0]
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)] if apart else [memory.size]
        pieces = [torch.from_numpy(memory[a:b]).cuda() for a, b in zip(starts, ends, strict=True)]
        bases = [p.data_ptr() - a for p, a in zip(pieces, starts, strict=True)] * (1 if apart else len(offsets))
        addresses = tuple(base + offset for base, offset in zip(bases, offsets, strict=True))
        kernels.run(addresses, torch.cuda.current_stream().cuda_stream)
        gpu.synchronize(RUN_TIMEOUT, "running " + ", ".join(x.kernel for x in launch_plan.launches))
        for piece, a, b in zip(pieces, starts, ends, strict=True):
            memory[a:b] = piece.cpu().numpy()
        return (guarded.INVALID,) if kernels.failed() else ()

    return call


def aligned(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs as kernels expect them: those not aligned to 16 bytes are copied."""
    return list(map(launcher.aligned, inputs))


# ---- compiled functions


def prepare(cache: Path) -> None:
    """Start building and loading, in other threads, what compiles and launches GPU kernels, while these are lowered."""
    gpu_native.start_build(cache)
    threading.Thread(target=cubin.nvrtc_compiler).start()


def loader(
    lowering: Lowering,
    constants: Mapping[int, torch.Tensor],
    threads: int,
    cache: Path | None,
    invalid: Callable[..., object],
    wait: bool = False,
) -> Callable[[Plan], Launcher]:
    """Return a function from a plan to a launcher: on the GPU if there is one, else in the emulator.

    `invalid` is called with the arguments of a call whose data the kernels reject, and raises. On a GPU this needs
    `wait`, by which the host waits for each call; otherwise the next call raises InvalidData.
    """
    source, program = text(lowering, "cuda"), lowering.stages["kernel"]
    arch = architecture(lowering.target)
    if arch is None:
        path = emulator.build(source, (HEADERS,), cache=cache)
        return lambda plan: _emulated_launcher(path, plan, launches(program, plan), constants, threads, invalid)
    # PyTorch accepts zero-dimensional CPU tensors wherever it accepts numbers.
    constants = {n: x.cuda() if x.device.type == "cpu" and not x.dim() else x for n, x in constants.items()}
    code = cubin.build_cubins(cuda.parts(source), arch, include=(HEADERS,), cache=cache)
    if not program.sizes:
        return lambda plan: gpu.load(
            code, plan, launches(program, plan), constants=constants, cache=cache, invalid=invalid if wait else None
        )
    module = functools.cache(lambda index: gpu.Module(device.driver(index), *(x.image for x in code)))
    # A graph has fixed sizes: for symbolic sizes, launches are enqueued one by one.
    return lambda plan: gpu.load(
        module(torch.cuda.current_device()), plan, launches(program, plan), constants=constants,
        graphs_from=sys.maxsize, cache=cache, invalid=invalid if wait else None,
    )  # fmt: skip


def _emulated_launcher(
    path: Path,
    plan: Plan,
    launch_plan: LaunchPlan,
    constants: Mapping[int, torch.Tensor],
    threads: int,
    invalid: Callable[..., object],
) -> Launcher:
    def run(inputs: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> object:
        tensors = (*aligned(inputs), *outputs)  # keeps copies of inputs alive until the kernels have run
        pointers = [x.data_ptr() for x in tensors]
        result = emulator.run_pointers(path, launch_plan, pointers, threads=threads or torch.get_num_threads())
        if result.reports:
            raise CompilerError("the emulator stopped: " + "; ".join(map(_finding_line, result.reports)))
        return result.invalid

    return launcher.python_launcher(plan, launcher.bind(plan, constants), run, invalid)
