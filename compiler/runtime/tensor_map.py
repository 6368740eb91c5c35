"""Tensor maps, which describe boxes of a tensor to the copy engine: the numbers that the driver encodes.

Limits are those of cuTensorMapEncodeTiled in the CUDA driver's API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from compiler.errors import CompilerError
from compiler.runtime.launches import Map

BYTES, ALIGNMENT = 128, 64  # size and alignment of a map in memory
BASE_ALIGNMENT = 16  # required alignment of the tensor, in bytes
# CUtensorMapDataType (bool is a byte), and element sizes in bytes.
_TYPES = {
    "u8": (0, 1), "i8": (0, 1), "bool": (0, 1), "i16": (1, 2), "i32": (3, 4), "i64": (5, 8), "f16": (6, 2),
    "f32": (7, 4), "f64": (8, 8), "bf16": (9, 2), "f8e4m3": (0, 1), "f8e5m2": (0, 1),
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
_PROMOTE_128, _PROMOTE_256 = 2, 3  # CUtensorMapL2promotion
_MAX_AXES, _MAX_BOX, _MAX_STEP, _MAX_EXTENT, _MAX_STRIDE = 5, 256, 8, 1 << 32, 1 << 40
MAX_CACHED = 64  # the most cached encodings per argument


@dataclass(frozen=True)
class Encoding:
    """A map as the driver takes it, innermost first; `strides` are in bytes, without the innermost axis.

    `box` is the extent that a box covers, of which it has one element in each of `steps`.
    """

    dtype: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int
    steps: tuple[int, ...]


def encoding(m: Map) -> Encoding:
    """The encoding of a map. Raises CompilerError for one that the copy engine cannot handle.

    >>> encoding(Map(0, "bf16", (128, 100), (2, 256), (64, 8), 128))
    Encoding(dtype=9, dims=(128, 100), strides=(256,), box=(64, 8), swizzle=3, promotion=3, steps=(1, 1))
    """
    if problem := _problem(m):
        raise CompilerError(f"the copy engine cannot serve {m}: {problem}")
    dtype, size = _TYPES[m.dtype]
    # L2 promotion: a miss fetches 256 bytes, but 128 for narrow rows, whose neighbouring bytes are not used, and for
    # rows that do not begin at multiples of 256 bytes: matmuls of such rows took up to 1.18 times as long with 256.
    wide = m.box[0] * size >= 128 and all(stride % 256 == 0 for stride in m.strides[1:])
    promotion = _PROMOTE_256 if wide else _PROMOTE_128
    steps = m.steps or (1,) * len(m.dims)
    covered = tuple(n * step for n, step in zip(m.box, steps, strict=True))
    return Encoding(dtype, m.dims, m.strides[1:], covered, _SWIZZLES[m.swizzle], promotion, steps)


def _problem(m: Map) -> str:
    if m.dtype not in _TYPES:
        return f"{m.dtype} is none of {', '.join(_TYPES)}"
    size, axes = _TYPES[m.dtype][1], len(m.dims)
    row = m.box[0] * size if m.box else 0
    steps = m.steps or (1,) * axes
    checks = (
        (1 <= axes <= _MAX_AXES and len(m.strides) == len(m.box) == axes, "dims, strides and box are for 1 to 5 axes"),
        (m.swizzle in _SWIZZLES, "the swizzle is 0, 32, 64 or 128 bytes"),
        (all(0 < n <= _MAX_EXTENT for n in m.dims), "an extent is 1 to 2^32"),
        (len(steps) == axes and all(0 < n <= _MAX_STEP for n in steps), "a step is 1 to 8 elements"),
        (steps[:1] == (1,), "the innermost elements of a box are adjacent"),
        (
            all(0 < n * step <= _MAX_BOX for n, step in zip(m.box, steps, strict=False)),
            "a box has 1 to 256 elements along each axis, those between its own included",
        ),
        (row % 16 == 0, "a row of the box is a multiple of 16 bytes"),
        (not m.swizzle or row <= m.swizzle, "a row of the box fits in the swizzle"),
        (bool(m.strides) and m.strides[0] == size, "the innermost elements are adjacent"),
        (all(s % 16 == 0 and 0 <= s < _MAX_STRIDE for s in m.strides[1:]), "outer strides are multiples of 16 bytes"),
    )
    return next((claim for holds, claim in checks if not holds), "")


class Argument:
    """A map as a kernel argument: the 128 bytes at `address`, rewritten when the tensor's address changes."""

    def __init__(self, m: Map, encode: Callable[[int, int, Encoding], None]) -> None:
        self.encoding, self._encode = encoding(m), encode
        self._memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self.address = start + -start % ALIGNMENT
        self._encoded_address = 0  # the tensor's address encoded in the bytes
        self._encodings: dict[int, bytes] = {}

    def point(self, address: int) -> None:
        """Make it a map of the tensor at `address`; earlier encodings are cached."""
        if address == self._encoded_address:
            return
        if address % BASE_ALIGNMENT:
            raise CompilerError(
                f"a tensor at address {address:#x} is not aligned to {BASE_ALIGNMENT} bytes for the copy engine"
            )
        cached = self._encodings.get(address)
        self._encoded_address = 0
        if cached is None:
            self._encode(self.address, address, self.encoding)
            if len(self._encodings) >= MAX_CACHED:
                self._encodings.clear()
            self._encodings[address] = ctypes.string_at(self.address, BYTES)
        else:
            ctypes.memmove(self.address, cached, BYTES)
        self._encoded_address = address
