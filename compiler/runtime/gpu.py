"""Calling a program on a GPU: its cubin, buffers and launches in; a function from CUDA tensors to CUDA tensors out.

Tensors are used where they lie, on torch's current stream. What a launch needs is laid out once: a call writes the
addresses of its buffers into one table, into which all arguments point, and enqueues.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from compiler.errors import InvalidData
from compiler.runtime import device as devices
from compiler.runtime import faults, gpu_native, launcher, limits
from compiler.runtime.cubin import Cubin
from compiler.runtime.device import ANY_CLUSTER, MAX_DYNAMIC_SHARED, PORTABLE_CLUSTER, Driver
from compiler.runtime.gpu_graph import Replays
from compiler.runtime.gpu_native import Prepared
from compiler.runtime.launcher import Launcher, Plan
from compiler.runtime.launches import Flag, Launch, LaunchPlan, Map, Size
from compiler.runtime.tensor_map import Argument

# Kernels may read and write 16 bytes at once, from the start of any buffer; torch's own allocations lie at 512.
ALIGNMENT = 16
_KERNELS = re.compile(rb"\.text\.(\w+)\0")  # a cubin has a section of this name for each (CUDA Binary Utilities)
# A replay costs about as much as three launches.
GRAPHS_FROM = 4


class Module:
    """Machine code on a GPU, in one image or several, for several launch plans; given back when none of these is left.

    Raises ValueError where there is no image.
    """

    def __init__(self, driver: Driver, *images: bytes) -> None:
        if not images:
            raise ValueError("a module has at least one image")
        self._driver = driver
        self._numbers: list[int] = []
        self._where: dict[str, int] = {}
        for image in images:
            number = driver.load(image)
            weakref.finalize(self, _unload, driver, number).atexit = False
            self._numbers.append(number)
            if len(images) > 1:
                self._where |= {name.decode(): number for name in _KERNELS.findall(image)}

    def function(self, name: str) -> int:
        """A kernel, of whichever image has it; raises DeviceError where none has."""
        return self._driver.function(self._where.get(name, self._numbers[0]), name)


class Kernels:
    """The launches of a program on one GPU, ready to be enqueued on any buffers; a module may be shared."""

    def __init__(self, driver: Driver, code: Code, plan: LaunchPlan) -> None:
        self._driver = driver
        self._words = struct.Struct(f"{len(plan.buffers)}Q")
        self.table = (ctypes.c_uint64 * max(1, len(plan.buffers)))()
        self.maps: list[tuple[int, Argument]] = []
        self._kept: list[Any] = []  # the memory that addresses below are of
        # Where kernels say that the data has what it may not have: an integer of the host's that they can write.
        flagged = any(isinstance(a, Flag) for x in plan.launches for a in x.args)
        self.flag: ctypes.c_int | None = driver.flag() if flagged else None
        self._leave: dict[int, int] = {}  # bytes of dynamic shared memory by function
        for launch in plan.launches:
            limits.check(launch, len(plan.buffers))
        self._module = code if isinstance(code, Module) else Module(driver, *_images(code))
        self.prepared = [self._prepare(x) for x in plan.launches if all(x.grid)]
        self._replays = Replays(driver)
        self._lock = threading.Lock()
        # The graphs go before the code that they launch.
        weakref.finalize(self, _give_back, self._replays, self._module).atexit = False

    def _prepare(self, launch: Launch) -> Prepared:
        function = self._module.function(launch.kernel)
        # With the kernel's static arrays it may be more than the 48 KB that need no leave.
        if launch.shared > self._leave.get(function, 0):
            self._driver.allow(function, MAX_DYNAMIC_SHARED, launch.shared)
            self._leave[function] = launch.shared
        if math.prod(launch.cluster) > PORTABLE_CLUSTER:
            self._driver.allow(function, ANY_CLUSTER, 1)
        words = [self._word(argument) for argument in launch.args]
        array = (ctypes.c_uint64 * max(1, len(words)))(*words)
        self._kept.append(array)
        buffers = [x.buffer if isinstance(x, Map) else x for x in launch.args if isinstance(x, int | Map)]
        return Prepared(
            function, launch.grid, launch.block, launch.shared, ctypes.addressof(array), tuple(buffers), launch.overlaps
        )

    def _word(self, argument: int | Size | Map | Flag) -> int:
        """Where the driver finds an argument's value at every launch."""
        match argument:
            case int(number):
                return ctypes.addressof(self.table) + 8 * number
            case Size(value):
                size = ctypes.c_int64(value)
                self._kept.append(size)
                return ctypes.addressof(size)
            case Map():
                made = Argument(argument, self._driver.encode)
                self.maps.append((argument.buffer, made))
                return made.address
            case Flag():
                assert self.flag is not None
                where = ctypes.c_uint64(ctypes.addressof(self.flag))
                self._kept.append(where)
                return ctypes.addressof(where)

    def failed(self) -> bool:
        """Whether a kernel did not approve of its data since the last time that someone asked."""
        if self.flag is None or not self.flag.value:
            return False
        self.flag.value = 0
        return True

    def run(self, addresses: tuple[int, ...], stream: int, graphs: bool = False) -> None:
        """Enqueue all launches on buffers at these addresses, by number; with `graphs`, as a graph once that pays."""
        with self._lock:
            self._words.pack_into(self.table, 0, *addresses)
            for number, made in self.maps:
                made.point(addresses[number])
            if graphs:
                self._replays.run(addresses, stream, self._enqueue)
            else:
                self._enqueue(stream)

    def _enqueue(self, stream: int) -> None:
        launch = self._driver.launch
        for p in self.prepared:
            launch(p.function, p.grid, p.block, p.shared, stream, p.arguments, p.overlaps)

    def __len__(self) -> int:
        return len(self.prepared)


Code = Cubin | bytes | tuple[Cubin, ...] | Module  # of a program: its parts are loaded, or one module is


def _images(code: Cubin | bytes | tuple[Cubin, ...]) -> list[bytes]:
    parts = code if isinstance(code, tuple) else (code,)
    return [x.image if isinstance(x, Cubin) else x for x in parts]


def _give_back(replays: Replays, module: Module) -> None:
    del module  # kept until now
    with contextlib.suppress(faults.DeviceError):  # a lost context has taken them along
        replays.close()


def _unload(driver: Driver, module: int) -> None:
    with contextlib.suppress(faults.DeviceError):
        driver.unload(module)


# ---- tensors


def load(
    code: Code,
    plan: Plan,
    launches: LaunchPlan,
    *,
    constants: Mapping[int, torch.Tensor] | None = None,
    device: torch.device | None = None,
    driver: Driver | None = None,
    graphs_from: int = GRAPHS_FROM,
    cache: Path | None = None,
    native: bool = True,
    invalid: Callable[..., object] | None = None,
) -> Launcher:
    """The function that checks its tensors against `plan`, enqueues the launches, and returns its fresh outputs.

    It does not wait for the GPU, so errors of kernels come with later calls or `synchronize`. `constants` gives inputs
    by position that are not arguments. `device` is the current GPU unless said. Programs of `graphs_from` launches and
    more are replayed as graphs. Where kernels do not approve of the data of a call, the next one raises InvalidData;
    with `invalid`, the host waits for each call, and calls that with its arguments, and it raises. The native launcher
    is built into `cache` once; where that cannot be done, or with `native` false, calls go through Python. Raises
    CompilerError where there is no GPU, DeviceError for what the GPU
    refuses.
    """
    place = device if device is not None else _current_gpu()
    chosen = driver if driver is not None else devices.driver(place.index)
    if (len(plan.inputs), len(plan.outputs)) != (len(launches.inputs), len(launches.outputs)):
        raise ValueError("the plan of buffers and the plan of launches have different inputs or outputs")
    bound = {i: aligned(value) for i, value in launcher.bind(plan, constants or {}, place).items()}
    kernels = Kernels(chosen, code, launches)
    graphs = len(kernels) >= graphs_from
    if native and (functions := chosen.native()) is not None:
        free = [b for i, b in enumerate(plan.inputs) if i not in bound]
        call = gpu_native.load(
            plan, launches, kernels.table, kernels.prepared, kernels.maps, functions, place, bound, kernels.flag,
            refuse_late, lambda n, value: aligned(launcher.admit(n, free[n], value, place)), graphs, kernels, cache,
        )  # fmt: skip
        if call is not None:
            return _waiting(call, kernels, place, invalid)
    return _waiting(_load_python(plan, launches, kernels, place, bound, graphs), kernels, place, invalid)


def refuse_late(*arguments: object) -> None:
    """For what an earlier call was given, which nobody has any more."""
    raise InvalidData("an earlier call of this function was given")


def _waiting(call: Launcher, kernels: Kernels, place: torch.device, invalid: Callable[..., object] | None) -> Launcher:
    """A launcher that waits for each call, but while a graph is captured, and says at once what was wrong with it."""
    if invalid is None or kernels.flag is None:
        return call

    def call_and_wait(*arguments: object) -> tuple[torch.Tensor, ...]:
        made = call(*arguments)
        if place.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return made
            torch.cuda.current_stream(place).synchronize()
        if kernels.failed():
            invalid(*arguments)
        return made

    return call_and_wait


def _load_python(
    plan: Plan, launches: LaunchPlan, kernels: Kernels, place: torch.device, bound: Mapping[int, torch.Tensor],
    graphs: bool,
) -> Launcher:  # fmt: skip
    call = launcher.in_python(plan, bound, _Runs(launches, kernels, place, graphs), refuse_late, place)
    if place.type != "cuda":
        return call

    def call_there(*arguments: object) -> tuple[torch.Tensor, ...]:
        if torch.cuda.current_device() == place.index:
            return call(*arguments)
        with torch.cuda.device(place):
            return call(*arguments)

    return call_there


class _Runs:
    """Enqueues a program on inputs and outputs; true, and nothing is enqueued, where an earlier run has failed."""

    def __init__(self, launches: LaunchPlan, kernels: Kernels, place: torch.device, graphs: bool) -> None:
        self._offsets, self._arena = launches.offsets, launches.arena
        self._kernels, self._place, self._graphs, self._stream = kernels, place, graphs, _stream_of(place)
        self._cleared = launches.offsets[-launches.zeros] if launches.zeros else launches.arena
        self._zeros: dict[int, torch.Tensor] = {}  # by stream

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        if self._kernels.failed():
            return True
        place, held = self._place, list(map(aligned, inputs))
        addresses = [tensor.data_ptr() for tensor in (*held, *outputs)]
        # Freed behind the launches on this stream, and so given out again only after them.
        arena = torch.empty(self._arena, dtype=torch.uint8, device=place) if self._arena else None
        start = arena.data_ptr() if arena is not None else 0
        capturing, stream = place.type == "cuda" and torch.cuda.is_current_stream_capturing(), self._stream()
        zeros = self._zeros_of(stream, arena, capturing) if arena is not None else 0
        addresses += [(start if offset < self._cleared else zeros) + offset for offset in self._offsets]
        # A graph cannot be launched into a stream that is being captured.
        self._kernels.run(tuple(addresses), stream, self._graphs and not capturing)
        return False

    def _zeros_of(self, stream: int, arena: torch.Tensor, capturing: bool) -> int:
        """Where an arena would begin whose end holds zeros that no run at the same time uses: a stream has its own,
        which are zero again after each run, and a graph, for it may run beside, clears those in its arena."""
        size = arena.numel() - self._cleared
        if not size:
            return 0
        if capturing:
            arena[self._cleared :].zero_()
            return arena.data_ptr()
        held = self._zeros.get(stream)
        if held is None:
            held = self._zeros.setdefault(stream, torch.zeros(size, dtype=torch.uint8, device=self._place))
        return held.data_ptr() - self._cleared


def run_once(code: Code, launches: LaunchPlan, buffers: Sequence[torch.Tensor], driver: Driver | None = None) -> None:
    """Enqueue a program once on buffers that the caller allocated and filled: inputs, outputs, then temporaries.

    Nothing is checked: each must be on one GPU, as large as the kernels believe, and start at a multiple of 16 bytes.
    """
    place = next((b.device for b in buffers), None) or _current_gpu()
    chosen = driver if driver is not None else devices.driver(place.index)
    kernels = Kernels(chosen, code, launches)
    with torch.cuda.device(place) if place.type == "cuda" else contextlib.nullcontext():
        kernels.run(tuple(b.data_ptr() for b in buffers), _stream_of(place)())


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or where it starts amid 16 bytes, a copy with the same strides that does not."""
    if not tensor.data_ptr() % ALIGNMENT or not tensor.numel():
        return tensor
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.detach().as_strided((reach,), (1,), tensor.storage_offset())
    return flat.clone().as_strided(tensor.shape, tensor.stride(), 0)


def _current_gpu() -> torch.device:
    devices.require()
    return torch.device("cuda", torch.cuda.current_device())


def _stream_of(place: torch.device) -> Callable[[], int]:
    """What gives the number of torch's current stream there, the fastest way that this torch has."""
    if place.type != "cuda":
        return lambda: 0
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return lambda: int(raw(place.index))
    return lambda: int(torch.cuda.current_stream(place).cuda_stream)


# ---- waiting


def synchronize(timeout: float, what: str = "") -> None:
    """Wait until the GPU has done all that was enqueued on the current stream, at most `timeout` seconds.

    Raises Hang when it has not: the kernel runs on, and only the end of the process stops it. Raises DeviceError for
    what a kernel did since the last time that someone asked.
    """
    with faults.told(what or "waiting for the GPU"):
        make_event: Any = torch.cuda.Event  # untyped in torch
        event = make_event()
        event.record(torch.cuda.current_stream())
        wait(event.query, timeout, what)


def wait(done: Callable[[], bool], timeout: float, what: str = "") -> None:
    """Until `done`, asking ever less often; Hang after `timeout` seconds."""
    start, pause = time.monotonic(), 0.0
    while not done():
        if time.monotonic() - start > timeout:
            raise faults.Hang(timeout, what)
        time.sleep(pause)
        pause = min(pause + 2e-5, 2e-3)
