"""A GPU that needs none: it runs named Python functions on addresses as a driver would run kernels, and keeps a log."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime import faults
from compiler.runtime.gpu_native import Functions
from compiler.runtime.launches import Extent
from compiler.runtime.tensor_map import Encoding

Kernel = Callable[..., None]  # of the addresses of its arguments, one each


def f32(argument: int, count: int) -> npt.NDArray[np.float32]:
    """The elements that a pointer argument points to."""
    return floats(word(argument), count)


def floats(address: int, count: int) -> npt.NDArray[np.float32]:
    """The elements in memory at `address`."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def word(argument: int) -> int:
    """An argument of 64 bits."""
    return int(ctypes.c_uint64.from_address(argument).value)


@dataclass
class FakeDriver:
    """`kernels` by name, with how many arguments each takes; `log` is what was asked for, `refuse` what to fail."""

    kernels: Mapping[str, tuple[int, Kernel]]
    log: list[tuple[Any, ...]] = field(default_factory=list)
    refuse: Mapping[str, int] = field(default_factory=dict)
    graphs: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    _capturing: list[tuple[Any, ...]] | None = None

    def load(self, image: bytes) -> int:
        self._note("load", len(image))
        return 1000

    def unload(self, module: int) -> None:
        self._note("unload", module)

    def function(self, module: int, name: str) -> int:
        if name not in self.kernels:
            raise faults.fault(500, f"looking for kernel {name}")
        return list(self.kernels).index(name) + 1

    def allow(self, function: int, attribute: int, value: int) -> None:
        self._note("allow", function, attribute, value)

    def launch(
        self, function: int, grid: Extent, block: Extent, shared: int, stream: int, arguments: int, overlaps: bool
    ) -> None:
        count, kernel = list(self.kernels.values())[function - 1]
        pointers = list((ctypes.c_uint64 * count).from_address(arguments))
        self._note("launch", function, grid, block, shared, stream, *(["overlaps"] if overlaps else []))
        if self._capturing is not None:
            # A graph has copies of the arguments from when it was captured.
            copies = [ctypes.create_string_buffer(ctypes.string_at(p, 8), 8) for p in pointers]
            self._capturing.append((kernel, copies))
        else:
            kernel(*pointers)

    def encode(self, storage: int, address: int, made: Encoding) -> None:
        assert storage % 64 == 0
        self._note("encode", address, made)
        ctypes.memmove(storage, address.to_bytes(8, "little") + bytes(120), 128)

    def capture(self, enqueue: Callable[[int], None]) -> int:
        recorded: list[tuple[Any, ...]] = []
        self._capturing = recorded
        enqueue(77)
        self._capturing = None
        graph = 500 + len(self.asked("capture"))
        self._note("capture", graph)
        self.graphs[graph] = recorded
        return graph

    def replay(self, graph: int, stream: int) -> None:
        self._note("replay", graph)
        for kernel, copies in self.graphs[graph]:
            kernel(*(ctypes.addressof(c) for c in copies))

    def drop(self, graph: int) -> None:
        self._note("drop", graph)
        del self.graphs[graph]

    def flag(self) -> ctypes.c_int:
        return ctypes.c_int(0)

    def native(self) -> Functions | None:
        return None

    def asked(self, *names: str) -> Sequence[tuple[Any, ...]]:
        """The entries of the log of these kinds."""
        return [entry for entry in self.log if entry[0] in names]

    def _note(self, name: str, *what: object) -> None:
        if name in self.refuse:
            raise faults.fault(self.refuse[name], name)
        self.log.append((name, *what))
