"""A small typed interface to the GPU and its driver, through CuPy and, for what CuPy lacks, the driver's own library.

CuPy is imported when a GPU is first used: everything else works without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from compiler.errors import CompilerError
from compiler.runtime import faults
from compiler.runtime.gpu_native import Functions, functions
from compiler.runtime.launches import Extent
from compiler.runtime.tensor_map import Encoding

INSTALL = "install a CUDA build of torch and CuPy (`pip install 'pytest-mlcomp[cuda]'`) on a machine with an NVIDIA GPU"
# CUlaunchAttributeID: programmatic stream serialization
OVERLAP = 6
# CUfunction_attribute
MAX_DYNAMIC_SHARED, ANY_CLUSTER = 8, 14
PORTABLE_CLUSTER = 8  # blocks; larger clusters need permission


@dataclass(frozen=True)
class Device:
    """A GPU. Sizes are in bytes, `shared` is the maximum of a block, `cores` are multiprocessors."""

    index: int
    name: str
    capability: tuple[int, int]
    cores: int
    l2: int
    shared: int
    memory: int


class Driver(Protocol):
    """Operations that running kernels needs; handles are addresses. Every method may raise a DeviceError."""

    def load(self, image: bytes) -> int:
        """Load a module of machine code, kept until `unload`."""

    def unload(self, module: int) -> None:
        """Unload a module once the GPU has finished with it."""

    def function(self, module: int, name: str) -> int:
        """The kernel of this name in a module."""

    def allow(self, function: int, attribute: int, value: int) -> None:
        """Raise a function's default limit (a CUfunction_attribute)."""

    def launch(
        self, function: int, grid: Extent, block: Extent, shared: int, stream: int, arguments: int, overlaps: bool
    ) -> None:
        """Enqueue a kernel; `arguments` is the address of an array of addresses of arguments. A kernel that `overlaps`
        may begin before its predecessor in the stream has ended (programmatic dependent launch)."""

    def encode(self, storage: int, address: int, encoding: Encoding) -> None:
        """Write a tensor map of the memory at `address` to 128 bytes at `storage`, which is aligned to 64."""

    def capture(self, enqueue: Callable[[int], None]) -> int:
        """Instantiate a graph of the work that `enqueue` puts into the stream passed to it."""

    def replay(self, graph: int, stream: int) -> None:
        """Enqueue a graph."""

    def drop(self, graph: int) -> None:
        """Destroy a graph."""

    def flag(self) -> ctypes.c_int:
        """An integer in host memory, initially 0, that kernels can write at the same address."""

    def native(self) -> Functions | None:
        """The functions that the native launcher calls instead of these methods; None if it cannot be used."""


def unavailable_reason() -> str:
    """Why kernels cannot run here, with advice; empty if they can."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) was built without CUDA; {INSTALL}"
    if not torch.cuda.is_available():
        return f"torch finds no GPU; {INSTALL}"
    try:
        import cupy  # noqa: F401, PLC0415
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); {INSTALL}"
    return ""


def require_gpu() -> None:
    """Raise CompilerError unless kernels can run here."""
    if reason := unavailable_reason():
        raise CompilerError(f"no GPU to run on: {reason}.")


@functools.cache
def devices() -> tuple[Device, ...]:
    """The GPUs that this process may use; empty without CUDA."""
    return () if unavailable_reason() else tuple(map(_device, range(torch.cuda.device_count())))


def _device(index: int) -> Device:
    from cupy.cuda import runtime  # noqa: PLC0415

    with faults.device_errors("asking for the GPU's properties"):
        p = runtime.getDeviceProperties(index)
    name = p["name"].decode() if isinstance(p["name"], bytes) else str(p["name"])
    return Device(
        index, name, (p["major"], p["minor"]), p["multiProcessorCount"], p["l2CacheSize"],
        p["sharedMemPerBlockOptin"], p["totalGlobalMem"],
    )  # fmt: skip


def architecture(capability: tuple[int, int], described: Sequence[str]) -> str | None:
    """The best of the `described` architectures whose machine code runs at this capability; None if none does.

    Machine code runs on later minor versions of its major version, or with the suffix `a` on exactly its own.

    >>> architecture((9, 0), ("sm_80", "sm_86", "sm_90a")), architecture((8, 7), ("sm_80", "sm_86", "sm_90a"))
    ('sm_90a', 'sm_86')
    >>> architecture((10, 0), ("sm_80", "sm_90a")), architecture((12, 1), ("sm_120", "sm_90a"))
    (None, 'sm_120')
    """
    major, minor = capability
    candidates = []
    for name in described:
        number = int(name.removeprefix("sm_").rstrip("af"))
        exact = (number // 10, number % 10) == capability
        if exact or (name[-1].isdigit() and number // 10 == major and number % 10 <= minor):
            candidates.append((number, name))
    return max(candidates)[1] if candidates else None


class CupyDriver:
    """The driver of one GPU. Methods make that GPU's context current where they need it."""

    def __init__(self, index: int) -> None:
        require_gpu()
        from cupy.cuda import driver, runtime  # noqa: PLC0415

        self.index, self._driver, self._runtime = index, driver, runtime
        with faults.device_errors("starting the GPU"), torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()
            runtime.setDevice(index)
            self._context: int = driver.ctxGetCurrent()
        self._side_stream: int | None = None

    def load(self, image: bytes) -> int:
        with faults.device_errors("loading machine code"), self._current():
            return int(self._driver.moduleLoadData(image))

    def unload(self, module: int) -> None:
        with faults.device_errors("unloading machine code"), self._current():
            self._driver.moduleUnload(module)

    def function(self, module: int, name: str) -> int:
        with faults.device_errors(f"looking for kernel {name}"):
            return int(self._driver.moduleGetFunction(module, name))

    def allow(self, function: int, attribute: int, value: int) -> None:
        with faults.device_errors(f"raising a kernel's limit (attribute {attribute}) to {value}"):
            self._driver.funcSetAttribute(function, attribute, value)

    def launch(
        self, function: int, grid: Extent, block: Extent, shared: int, stream: int, arguments: int, overlaps: bool
    ) -> None:
        attributes = (_Attribute * 1)(_Attribute(OVERLAP, 0, 1))
        config = _Config(grid, block, shared, stream, ctypes.addressof(attributes), int(overlaps))
        status = _launch_function()(ctypes.byref(config), function, arguments, None)
        if status == faults.INVALID_CONTEXT:
            # A thread that has not yet used the GPU has no context.
            with faults.device_errors("launching a kernel"):
                self._driver.ctxSetCurrent(self._context)
            status = _launch_function()(ctypes.byref(config), function, arguments, None)
        if status:
            raise faults.fault(status, "launching a kernel")

    def encode(self, storage: int, address: int, encoding: Encoding) -> None:
        n = len(encoding.dims)
        code = _encode_function()(
            storage, encoding.dtype, n, address, (ctypes.c_uint64 * n)(*encoding.dims),
            (ctypes.c_uint64 * max(1, n - 1))(*encoding.strides), (ctypes.c_uint32 * n)(*encoding.box),
            (ctypes.c_uint32 * n)(*encoding.steps), 0, encoding.swizzle, encoding.promotion, 0,
        )  # fmt: skip
        if code:
            raise faults.fault(code, f"encoding a tensor map of {encoding}")

    def capture(self, enqueue: Callable[[int], None]) -> int:
        with faults.device_errors("capturing a graph"), self._current():
            stream = self._capture_stream()
            self._runtime.streamBeginCapture(stream, self._runtime.streamCaptureModeRelaxed)
            try:
                enqueue(stream)
            finally:
                graph = self._runtime.streamEndCapture(stream)
            try:
                return int(self._runtime.graphInstantiate(graph))
            finally:
                self._runtime.graphDestroy(graph)

    def replay(self, graph: int, stream: int) -> None:
        with faults.device_errors("replaying a graph"):
            self._runtime.graphLaunch(graph, stream)

    def drop(self, graph: int) -> None:
        with faults.device_errors("dropping a graph"):
            self._runtime.graphExecDestroy(graph)

    def flag(self) -> ctypes.c_int:
        import cupy  # noqa: PLC0415

        with faults.device_errors("allocating memory that the GPU can write"), self._current():
            memory = cupy.cuda.alloc_pinned_memory(ctypes.sizeof(ctypes.c_int))
        value = ctypes.c_int.from_address(memory.ptr)
        value.value, value.memory = 0, memory  # type: ignore[attr-defined]  # keeps the memory allocated
        return value

    def native(self) -> Functions | None:
        return functions(self._context, self._capture_stream())

    def _capture_stream(self) -> int:
        """A stream for captures: the default stream cannot be captured, and the caller's may hold other work."""
        if self._side_stream is None:
            with faults.device_errors("making a stream"), self._current():
                self._side_stream = int(self._runtime.streamCreateWithFlags(self._runtime.streamNonBlocking))
        return self._side_stream

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make this GPU's context current; a thread that has not yet used the GPU has none."""
        with torch.cuda.device(self.index):
            if self._driver.ctxGetCurrent() != self._context:
                self._driver.ctxSetCurrent(self._context)
            yield


@functools.cache
def driver(index: int) -> CupyDriver:
    """The driver of GPU number `index`, started once."""
    return CupyDriver(index)


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute whose value is a flag."""

    _fields_ = (("kind", ctypes.c_int), ("unused", ctypes.c_int), ("on", ctypes.c_int), ("room", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint32),
    )  # fmt: skip


@functools.cache
def _launch_function() -> Callable[..., int]:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return function


@functools.cache
def _encode_function() -> Callable[..., int]:
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    array = ctypes.c_void_p
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, array, array, array, array,
        ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    )  # fmt: skip
    return function
