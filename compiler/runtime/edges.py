"""Run a program on inputs that may only be read, each beside pages that may not be accessed at all.

An access outside of an input, and a write to one, ends the process, also where the value does not matter: such as lanes
of a vector that are loaded and dropped, or an element that is written as it is.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
PAGE = mmap.PAGESIZE
CLOSED = 0  # PROT_NONE
CRASHED = "with its inputs read-only and beside pages that may not be accessed, "


@dataclass(frozen=True)
class Slot:
    """Whole pages from `start` to `end` for an input of `size` bytes; the pages before and after are closed."""

    start: int
    end: int
    size: int

    def offset(self, last: bool) -> int:
        """The offset of the input at the end of its pages, or else at their beginning."""
        return self.end - self.size if last else self.start


def slots(start: int, sizes: Sequence[int]) -> tuple[list[Slot], int]:
    """Slots from an offset on for inputs of these sizes, and the offset behind them."""
    made, end = [], -(-start // PAGE) * PAGE
    for size in sizes:
        begin = end + PAGE
        end = begin + -(-size // PAGE) * PAGE
        made.append(Slot(begin, end, size))
    return made, end + PAGE


def run(
    call: Callable[[Bytes, Sequence[int], int], Sequence[str]],
    data: Bytes,
    places: Sequence[Slot],
    inputs: Sequence[Bytes],
    others: Sequence[int],
) -> list[str]:
    """Call with the inputs at the end of their slots, then at their beginning, and the `others` at these offsets.

    It ends the process if an access is wrong, so it should be one of its own. `data` must begin at a page.
    """
    complaints: list[str] = []
    address, size = data.ctypes.data, len(data)
    for last in (True, False):
        offsets = [slot.offset(last) for slot in places]
        for offset, content in zip(offsets, inputs, strict=True):
            data[offset : offset + len(content)] = content
        for slot in places:
            _protect(address + slot.start - PAGE, PAGE, CLOSED)
            _protect(address + slot.start, slot.end - slot.start, mmap.PROT_READ)
            _protect(address + slot.end, PAGE, CLOSED)
        complaints += call(data, [*offsets, *others], 0)
        _protect(address, size, mmap.PROT_READ | mmap.PROT_WRITE)
    return complaints


def _protect(address: int, size: int, access: int) -> None:
    if size and ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect failed")
