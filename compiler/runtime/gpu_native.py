"""Native calls of a program on a GPU: prepared launches become a callable with a few microseconds of host time.

gpu_launch.c enqueues launches from a table laid out here; launcher.c checks tensors and allocates outputs. Without
torch's C ABI or a C compiler, gpu.py calls from Python, several times slower.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compiler.errors import ToolchainError
from compiler.runtime import build, extension, faults, launcher
from compiler.runtime.launcher import DTYPES, Launcher, Plan
from compiler.runtime.launches import Extent, LaunchPlan
from compiler.runtime.tensor_map import Argument

log = logging.getLogger("mlcomp")

FLAGS = ("-x", "c", "-O2", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-nostdlib", "-lc", "-lgcc")
RECENT, SLOTS = 16, 64  # RECENT and SLOTS of gpu_launch.c
# In the order of the functions in `Plan` of gpu_launch.c.
DRIVER_FUNCTIONS = (
    "cuLaunchKernel", "cuTensorMapEncodeTiled", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch",
    "cuGraphExecDestroy", "cuGraphDestroy", "cuStreamGetId", "cuStreamGetCaptureInfo_v2", "cuMemsetD8Async",
    "cuThreadExchangeStreamCaptureMode", "cuLaunchKernelEx", "cuGraphExecKernelNodeSetParams_v2",
)  # fmt: skip
STREAM_FUNCTION = "aoti_torch_get_current_cuda_stream"


class _Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32), ("overlaps", ctypes.c_uint32), ("arguments", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p), ("n_buffers", ctypes.c_int64),
    )  # fmt: skip


class _Map(ctypes.Structure):
    _fields_ = (
        ("buffer", ctypes.c_int64), ("over", ctypes.c_void_p), ("storage", ctypes.c_void_p),
        ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32), ("swizzle", ctypes.c_int32),
        ("promotion", ctypes.c_int32), ("dims", ctypes.c_uint64 * 5), ("strides", ctypes.c_uint64 * 5),
        ("box", ctypes.c_uint32 * 5), ("steps", ctypes.c_uint32 * 5),
    )  # fmt: skip


class _Plan(ctypes.Structure):
    _fields_ = (
        ("status", ctypes.c_int32), ("device", ctypes.c_int32), ("context", ctypes.c_void_p),
        ("side", ctypes.c_void_p), ("n_launches", ctypes.c_int64), ("n_maps", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64), ("graphs", ctypes.c_int64), ("calls", ctypes.c_int64),
        ("launches", ctypes.c_void_p), ("maps", ctypes.c_void_p), ("table", ctypes.c_void_p),
        ("known", ctypes.c_int64 * (4 * RECENT)), ("addresses", ctypes.c_void_p),
        ("n_zeros", ctypes.c_int64), ("zero_bytes", ctypes.c_int64), ("taken", ctypes.c_int64),
        ("zeros", ctypes.c_uint64), ("slots", ctypes.c_uint64 * (2 * SLOTS)),
        ("functions", ctypes.c_void_p * (1 + len(DRIVER_FUNCTIONS))), ("flag", ctypes.c_void_p),
        ("wanted", ctypes.c_int64),
        ("movable", ctypes.c_void_p), ("captured", ctypes.c_void_p), ("nodes", ctypes.c_void_p),
        ("over", ctypes.c_void_p), ("strays", ctypes.c_int64),
    )  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A launch without its stream; `arguments` is the address of its array of addresses, `buffers` the numbers of the
    buffers that it accesses. One that `overlaps` may begin before its predecessor in the stream has ended."""

    function: int
    grid: Extent
    block: Extent
    shared: int
    arguments: int
    buffers: tuple[int, ...]
    overlaps: bool = False


@dataclass(frozen=True)
class Functions:
    """Addresses of the functions that the entry calls (torch's current stream, then DRIVER_FUNCTIONS), and its
    context."""

    stream: int
    driver: tuple[int, ...]
    context: int
    side: int = 0


def load(
    plan: Plan,
    launches: LaunchPlan,
    table: ctypes.Array[ctypes.c_uint64],
    prepared: Sequence[Prepared],
    maps: Sequence[tuple[int, Argument]],
    functions: Functions,
    device: torch.device,
    bound: Mapping[int, torch.Tensor],
    flag: ctypes.c_int | None,
    invalid: Callable[..., object],
    admit: Callable[[int, object], torch.Tensor],
    graphs: bool,
    owner: object,
    cache: Path | None,
) -> Launcher | None:
    """Return the native callable, or None if this machine cannot build it.

    `table` has the buffers' addresses, to which the arguments of `prepared` point; `owner` owns both and the memory of
    `maps`. A call that finds `flag` set by an earlier call clears it and calls `invalid`, which raises. `admit`
    converts an argument that fails the quick check to a suitable tensor, or raises.
    """
    module, entry = await_build(cache)
    if module is None or entry is None:
        return None
    if not extension.supports_all_devices():
        log.info("torch %s has no C ABI for tensors on other devices: calls go through Python", torch.__version__)
        return None
    state, memory = lay_out(len(launches.buffers), prepared, maps, table, functions, graphs)
    state.device = device.index or 0
    state.flag = None if flag is None else ctypes.addressof(flag)
    slots = zero_slots(state, launches, device)
    free_inputs = [i for i in range(len(plan.inputs)) if i not in bound]

    def fail() -> None:
        raise faults.fault(state.status, "launching a program")

    native_launcher: Launcher = module.Launcher(
        ctypes.cast(entry.mlc_gpu_entry, ctypes.c_void_p).value,
        launcher.buffer_rows(plan.inputs, plan.packed_inputs, free_inputs),
        launcher.buffer_rows(plan.outputs, plan.packed_outputs, range(len(plan.outputs)), len(plan.inputs)),
        tuple((i, tensor.data_ptr()) for i, tensor in bound.items()),
        launches.offsets,
        launches.arena,
        (ctypes.addressof(state),),
        1,
        False,  # the table is accessed under the GIL
        0,
        admit,
        (tuple(bound.values()), state, memory, slots, owner),
        invalid,
        launcher.written_rows(plan, free_inputs),
        extension.device_type(device),
        device.index or 0,
        extension.dtype_code(DTYPES["u8"]),
        ctypes.addressof(state),  # its first word is the status
        fail,
    )
    weakref.finalize(owner, entry.mlc_gpu_close, ctypes.byref(state)).atexit = False
    return native_launcher


def zero_slots(state: _Plan, launches: LaunchPlan, device: torch.device) -> torch.Tensor | None:
    """Zeroed memory for buffers that launches find and leave zero, for SLOTS streams and captures; None if unused."""
    if not launches.zeros:
        return None
    state.n_zeros, state.zero_bytes = launches.zeros, launches.arena - launches.offsets[-launches.zeros]
    slots = torch.zeros(SLOTS * state.zero_bytes, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # other streams do not wait for this one
    state.zeros = slots.data_ptr()
    return slots


def lay_out(
    buffers: int,
    launches: Sequence[Prepared],
    maps: Sequence[tuple[int, Argument]],
    table: ctypes.Array[ctypes.c_uint64],
    functions: Functions,
    graphs: bool,
) -> tuple[_Plan, Any]:
    """The plan as a C structure, and the objects that own the memory it points to."""
    rows = (_Launch * max(1, len(launches)))()
    numbers = [(ctypes.c_int64 * len(p.buffers))(*p.buffers) for p in launches]
    for row, p, buffer_numbers in zip(rows, launches, numbers, strict=False):
        row.function, row.shared, row.arguments, row.overlaps = p.function, p.shared, p.arguments, p.overlaps
        row.grid[:], row.block[:] = p.grid, p.block
        row.buffers, row.n_buffers = ctypes.addressof(buffer_numbers), len(buffer_numbers)
    map_rows = (_Map * max(1, len(maps)))()
    for map_row, (number, argument) in zip(map_rows, maps, strict=False):
        encoding = argument.encoding
        map_row.buffer, map_row.storage, map_row.rank = number, argument.address, len(encoding.dims)
        map_row.dtype, map_row.swizzle, map_row.promotion = encoding.dtype, encoding.swizzle, encoding.promotion
        for field, values in (
            (map_row.dims, encoding.dims), (map_row.strides, encoding.strides),
            (map_row.box, encoding.box), (map_row.steps, encoding.steps),
        ):  # fmt: skip
            field[: len(values)] = values
    addresses = (ctypes.c_uint64 * max(1, RECENT * buffers))()
    over, nodes = (ctypes.c_uint64 * max(1, buffers))(), (ctypes.c_void_p * max(1, len(launches)))()
    state = _Plan(n_launches=len(launches), n_maps=len(maps), n_buffers=buffers, graphs=graphs)
    state.context, state.side = functions.context, functions.side
    state.functions[:] = [functions.stream, *functions.driver]
    state.launches, state.maps = ctypes.addressof(rows), ctypes.addressof(map_rows)
    state.table, state.addresses = ctypes.addressof(table), ctypes.addressof(addresses)
    state.over, state.nodes = ctypes.addressof(over), ctypes.addressof(nodes)
    return state, (rows, numbers, map_rows, addresses, over, nodes, table)


Parts = tuple[Any, Any]  # an extension module and a library

_builds: dict[Path | None, Future[Parts]] = {}
_lock = threading.Lock()
os.register_at_fork(after_in_child=_builds.clear)  # the thread that builds them exists in the parent only


def start_build(cache: Path | None) -> Future[Parts]:
    """Compile launcher.c and gpu_launch.c in another thread, unless that is done or in progress."""
    with _lock:
        future = _builds.get(cache)
        # A failure, such as a full disk, may be over.
        if future is None or (future.done() and future.exception() is not None):
            future = _builds[cache] = Future()
            threading.Thread(target=_complete, args=(future, cache)).start()
        return future


def await_build(cache: Path | None) -> Parts:
    """Return the modules of launcher.c and gpu_launch.c; None for both if they cannot be built."""
    return start_build(cache).result()


def _complete(future: Future[Parts], cache: Path | None) -> None:
    try:
        future.set_result(_build(cache))
    except BaseException as problem:
        future.set_exception(problem)


def _build(cache: Path | None) -> Parts:
    try:
        module = extension.load(cache)
        source = Path(__file__).with_name("gpu_launch.c").read_text()
        # PyDLL: `mlc_gpu_close` runs under the GIL, as calls do.
        return module, ctypes.PyDLL(str(build.build(source, FLAGS, cache=cache)))
    except ToolchainError as error:
        log.warning("mlcomp: calls on the GPU go through Python, about 10 us slower each: %s", error)
        return None, None


@functools.cache
def functions(context: int, side: int) -> Functions | None:
    """The functions of this machine's driver and torch; None if torch has no C ABI for CUDA."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        torch_cuda = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        stream = ctypes.cast(getattr(torch_cuda, STREAM_FUNCTION), ctypes.c_void_p).value or 0
        driver = tuple(ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value or 0 for name in DRIVER_FUNCTIONS)
    except (OSError, AttributeError):
        return None
    return Functions(stream, driver, context, side) if extension.tensor_offset() is not None else None
