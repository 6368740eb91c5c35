"""Turn a cubin, its buffers and its launches into a function from CUDA tensors to CUDA tensors.

Tensors are used in place, on torch's current stream. Launch arguments are laid out once: they point into one table of
buffer addresses, which a call fills before it enqueues the launches.
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

_KERNELS = re.compile(rb"\.text\.(\w+)\0")  # a cubin has such a section per kernel (CUDA Binary Utilities)
# Replaying a graph costs about as much as three launches.
GRAPHS_FROM = 4


class Module:
    """Machine code on a GPU, in one or several images, shared by launch plans and unloaded after the last of them.

    Raises ValueError without an image.
    """

    def __init__(self, driver: Driver, *images: bytes) -> None:
        if not images:
            raise ValueError("a module has at least one image")
        self._driver = driver
        self._modules: list[int] = []
        self._module_of: dict[str, int] = {}
        for image in images:
            number = driver.load(image)
            weakref.finalize(self, _unload, driver, number).atexit = False
            self._modules.append(number)
            if len(images) > 1:
                self._module_of |= {name.decode(): number for name in _KERNELS.findall(image)}

    def function(self, name: str) -> int:
        """The kernel of this name, in any of the images. Raises DeviceError if none has it."""
        return self._driver.function(self._module_of.get(name, self._modules[0]), name)


class Kernels:
    """The launches of a program on one GPU, ready to be enqueued on any buffers. A module may be shared."""

    def __init__(self, driver: Driver, code: Code, plan: LaunchPlan) -> None:
        self._driver = driver
        self._packer = struct.Struct(f"{len(plan.buffers)}Q")
        self.table = (ctypes.c_uint64 * max(1, len(plan.buffers)))()
        self.maps: list[tuple[int, Argument]] = []
        self._owners: list[Any] = []  # owners of the memory at the addresses below
        # Kernels report invalid data here: an integer in host memory that they can write.
        flagged = any(isinstance(a, Flag) for x in plan.launches for a in x.args)
        self.flag: ctypes.c_int | None = driver.flag() if flagged else None
        self._allowed_shared: dict[int, int] = {}  # permitted bytes of dynamic shared memory by function
        for launch in plan.launches:
            limits.check(launch, len(plan.buffers))
        self._module = code if isinstance(code, Module) else Module(driver, *_images(code))
        self.prepared = [self._prepare(x) for x in plan.launches if all(x.grid)]
        self._replays = Replays(driver)
        self._lock = threading.Lock()
        # Destroy the graphs before unloading the code that they launch.
        weakref.finalize(self, _release, self._replays, self._module).atexit = False

    def _prepare(self, launch: Launch) -> Prepared:
        function = self._module.function(launch.kernel)
        # Together with the kernel's static arrays it may exceed the 48 KB that need no permission.
        if launch.shared > self._allowed_shared.get(function, 0):
            self._driver.allow(function, MAX_DYNAMIC_SHARED, launch.shared)
            self._allowed_shared[function] = launch.shared
        if math.prod(launch.cluster) > PORTABLE_CLUSTER:
            self._driver.allow(function, ANY_CLUSTER, 1)
        words = [self._argument_address(argument) for argument in launch.args]
        array = (ctypes.c_uint64 * max(1, len(words)))(*words)
        self._owners.append(array)
        buffers = [x.buffer if isinstance(x, Map) else x for x in launch.args if isinstance(x, int | Map)]
        return Prepared(
            function, launch.grid, launch.block, launch.shared, ctypes.addressof(array), tuple(buffers), launch.overlaps
        )

    def _argument_address(self, argument: int | Size | Map | Flag) -> int:
        """The address from which the driver reads an argument's value at every launch."""
        match argument:
            case int(number):
                return ctypes.addressof(self.table) + 8 * number
            case Size(value):
                size = ctypes.c_int64(value)
                self._owners.append(size)
                return ctypes.addressof(size)
            case Map():
                map_argument = Argument(argument, self._driver.encode)
                self.maps.append((argument.buffer, map_argument))
                return map_argument.address
            case Flag():
                assert self.flag is not None
                flag_address = ctypes.c_uint64(ctypes.addressof(self.flag))
                self._owners.append(flag_address)
                return ctypes.addressof(flag_address)

    def failed(self) -> bool:
        """Whether a kernel rejected its data since the last call of this method."""
        if self.flag is None or not self.flag.value:
            return False
        self.flag.value = 0
        return True

    def run(self, addresses: tuple[int, ...], stream: int, graphs: bool = False) -> None:
        """Enqueue all launches on buffers at these addresses, by number; with `graphs`, as a graph once that pays."""
        with self._lock:
            self._packer.pack_into(self.table, 0, *addresses)
            for number, map_argument in self.maps:
                map_argument.point(addresses[number])
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


Code = Cubin | bytes | tuple[Cubin, ...] | Module  # of a program: parts to load, or a loaded module


def _images(code: Cubin | bytes | tuple[Cubin, ...]) -> list[bytes]:
    parts = code if isinstance(code, tuple) else (code,)
    return [x.image if isinstance(x, Cubin) else x for x in parts]


def _release(replays: Replays, module: Module) -> None:
    del module  # keeps it loaded until now
    with contextlib.suppress(faults.DeviceError):  # a lost context has destroyed them
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
    """Return a function that checks its tensors against `plan`, enqueues the launches, and returns fresh outputs.

    It does not wait for the GPU, so later calls or `synchronize` raise the errors of kernels. `constants` binds inputs
    by position, which then are not arguments. `device` defaults to the current GPU. Programs of at least `graphs_from`
    launches are replayed as graphs. If kernels reject the data of a call, the next call raises InvalidData; with
    `invalid`, the host waits for each call, and passes the arguments of a rejected one to `invalid`, which raises. The
    native launcher is built into `cache` once; if that fails, or without `native`, calls go through Python. Raises
    CompilerError without a GPU, and DeviceError for errors of the GPU.
    """
    gpu = device if device is not None else _current_gpu()
    chosen = driver if driver is not None else devices.driver(gpu.index)
    if (len(plan.inputs), len(plan.outputs)) != (len(launches.inputs), len(launches.outputs)):
        raise ValueError("the plan of buffers and the plan of launches have different inputs or outputs")
    bound = {i: launcher.aligned(value) for i, value in launcher.bind(plan, constants or {}, gpu).items()}
    kernels = Kernels(chosen, code, launches)
    graphs = len(kernels) >= graphs_from
    if native and (functions := chosen.native()) is not None:
        arguments = [
            b for i, b in enumerate(launcher.packed_buffers(plan.inputs, plan.packed_inputs)) if i not in bound
        ]
        call = gpu_native.load(
            plan, launches, kernels.table, kernels.prepared, kernels.maps, functions, gpu, bound, kernels.flag,
            refuse_late, lambda n, value: launcher.aligned(launcher.admit(n, arguments[n], value, gpu)), graphs,
            kernels, cache,
        )  # fmt: skip
        if call is not None:
            return _with_waiting(call, kernels, gpu, invalid)
    return _with_waiting(_load_python(plan, launches, kernels, gpu, bound, graphs), kernels, gpu, invalid)


def refuse_late(*arguments: object) -> None:
    """Raise InvalidData for an earlier call, whose arguments are no longer known."""
    raise InvalidData("an earlier call of this function was given")


def _with_waiting(
    call: Launcher, kernels: Kernels, device: torch.device, invalid: Callable[..., object] | None
) -> Launcher:
    """With `invalid`, a launcher that waits for each call, unless a graph is captured, and reports invalid data."""
    if invalid is None or kernels.flag is None:
        return call

    def call_and_wait(*arguments: object) -> tuple[torch.Tensor, ...]:
        results = call(*arguments)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return results
            torch.cuda.current_stream(device).synchronize()
        if kernels.failed():
            invalid(*arguments)
        return results

    return call_and_wait


def _load_python(
    plan: Plan, launches: LaunchPlan, kernels: Kernels, device: torch.device, bound: Mapping[int, torch.Tensor],
    graphs: bool,
) -> Launcher:  # fmt: skip
    call = launcher.python_launcher(plan, bound, _Enqueue(launches, kernels, device, graphs), refuse_late, device)
    if device.type != "cuda":
        return call

    def call_on_device(*arguments: object) -> tuple[torch.Tensor, ...]:
        if torch.cuda.current_device() == device.index:
            return call(*arguments)
        with torch.cuda.device(device):
            return call(*arguments)

    return call_on_device


class _Enqueue:
    """Enqueue a program on inputs and outputs. If an earlier run failed, enqueue nothing and return True."""

    def __init__(self, launches: LaunchPlan, kernels: Kernels, device: torch.device, graphs: bool) -> None:
        self._offsets, self._arena = launches.offsets, launches.arena
        self._kernels, self._device, self._graphs, self._stream = kernels, device, graphs, _stream_of(device)
        self._zeros_start = launches.offsets[-launches.zeros] if launches.zeros else launches.arena
        self._zeros: dict[int, torch.Tensor] = {}  # by stream

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        if self._kernels.failed():
            return True
        device, aligned_inputs = self._device, list(map(launcher.aligned, inputs))
        addresses = [tensor.data_ptr() for tensor in (*aligned_inputs, *outputs)]
        # Freed after the launches on this stream, and thus reused only after them.
        arena = torch.empty(self._arena, dtype=torch.uint8, device=device) if self._arena else None
        start = arena.data_ptr() if arena is not None else 0
        capturing, stream = device.type == "cuda" and torch.cuda.is_current_stream_capturing(), self._stream()
        zeros = self._zeros_of(stream, arena, capturing) if arena is not None else 0
        addresses += [(start if offset < self._zeros_start else zeros) + offset for offset in self._offsets]
        # A graph cannot be launched into a stream that is being captured.
        self._kernels.run(tuple(addresses), stream, self._graphs and not capturing)
        return False

    def _zeros_of(self, stream: int, arena: torch.Tensor, capturing: bool) -> int:
        """The address of a virtual arena whose end holds zeros that no concurrent run uses. Each stream has its own
        zeros, which are zero again after each run. A captured graph may run beside, so it clears its own arena."""
        size = arena.numel() - self._zeros_start
        if not size:
            return 0
        if capturing:
            arena[self._zeros_start :].zero_()
            return arena.data_ptr()
        zeros = self._zeros.get(stream)
        if zeros is None:
            zeros = self._zeros.setdefault(stream, torch.zeros(size, dtype=torch.uint8, device=self._device))
        return zeros.data_ptr() - self._zeros_start


def run_once(code: Code, launches: LaunchPlan, buffers: Sequence[torch.Tensor], driver: Driver | None = None) -> None:
    """Enqueue a program once on buffers that the caller allocated and filled: inputs, outputs, then temporaries.

    Nothing is checked: all must be on one GPU, have the sizes that the kernels expect, and be aligned to 16 bytes.
    """
    device = next((b.device for b in buffers), None) or _current_gpu()
    chosen = driver if driver is not None else devices.driver(device.index)
    kernels = Kernels(chosen, code, launches)
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernels.run(tuple(b.data_ptr() for b in buffers), _stream_of(device)())


def _current_gpu() -> torch.device:
    devices.require_gpu()
    return torch.device("cuda", torch.cuda.current_device())


def _stream_of(device: torch.device) -> Callable[[], int]:
    """The fastest function of this torch that returns the handle of the current stream of `device`."""
    if device.type != "cuda":
        return lambda: 0
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return lambda: int(raw(device.index))
    return lambda: int(torch.cuda.current_stream(device).cuda_stream)


# ---- waiting


def synchronize(timeout: float, operation: str = "") -> None:
    """Wait until the GPU has completed all work on the current stream, at most `timeout` seconds.

    Raises Hang after that: the kernel keeps running, and only the end of the process stops it. Raises DeviceError for
    faults of kernels since the last check.
    """
    with faults.device_errors(operation or "waiting for the GPU"):
        make_event: Any = torch.cuda.Event  # untyped in torch
        event = make_event()
        event.record(torch.cuda.current_stream())
        wait(event.query, timeout, operation)


def wait(done: Callable[[], bool], timeout: float, operation: str = "") -> None:
    """Poll `done` at growing intervals (up to 2 ms). Raises Hang after `timeout` seconds."""
    start, pause = time.monotonic(), 0.0
    while not done():
        if time.monotonic() - start > timeout:
            raise faults.Hang(timeout, operation)
        time.sleep(pause)
        pause = min(pause + 2e-5, 2e-3)
