"""Layouts of tiles in registers: from thread and register to row and column; and swizzles of shared memory.

A layout gives every digit of the thread number and of the register number a stride in the tile, in row-major order (as
in CuTe). The accumulator of `mma.m16n8k16`, 16 rows of 8 columns, in four registers of 32 threads:

>>> acc = Layout((16, 8), threads=((4, 2), (8, 8)), registers=((2, 1), (2, 64)))
>>> position(acc, 5, 0), position(acc, 5, 1), position(acc, 5, 2)
((1, 2), (1, 3), (9, 2))
"""

from __future__ import annotations

import math

from compiler.ir.node import Node

# (extent, stride) of each digit of a mixed-radix number, fastest digit first
Digits = tuple[tuple[int, int], ...]
WIDEST_SWIZZLE = 128


class Layout(Node):
    """The positions of a thread group's registers in a tile of `shape` (rows, columns), in row-major order.

    Registers are counted in elements: two of a 16-bit type share a 32-bit register, the even one in its low half. The
    offset of element `register` of thread `thread` is the sum of digit * stride over the digits of both numbers.
    """

    shape: tuple[int, int]
    threads: Digits
    registers: Digits = ()


def position(layout: Layout, thread: int, register: int) -> tuple[int, int]:
    """Row and column of a register; raises ValueError if the layout lacks the thread or register."""
    if not (0 <= thread < threads(layout) and 0 <= register < registers(layout)):
        raise ValueError(f"{layout} has no thread {thread} with a register {register}")
    row, column = divmod(_offset(layout.threads, thread) + _offset(layout.registers, register), layout.shape[1])
    return row, column


def threads(layout: Layout) -> int:
    """The number of threads that share the tile."""
    return math.prod(extent for extent, _ in layout.threads)


def registers(layout: Layout) -> int:
    """The number of elements that each thread holds."""
    return math.prod(extent for extent, _ in layout.registers)


def is_bijection(layout: Layout) -> bool:
    """Whether registers of threads and elements of the tile correspond one to one."""
    size = layout.shape[0] * layout.shape[1]
    offsets = [
        _offset(layout.threads, t) + _offset(layout.registers, r)
        for t in range(threads(layout))
        for r in range(registers(layout))
    ]
    return sorted(offsets) == list(range(size))


def swizzle_mask(span: int) -> int:
    """The bits of an offset that a swizzle changes; raises ValueError for an unknown span.

    In a tile in shared memory with rows of `span` bytes, 0 (no swizzle), 32, 64 or 128, pieces of 16 bytes are permuted
    within their row so that a column of pieces uses all banks: the bits from 4 on, which number the pieces of a row,
    are XORed with the bits from 7 on (PTX ISA, "Swizzling modes"). The tile must start at a multiple of 8 * span bytes.

    >>> [offset ^ (offset >> 3 & swizzle_mask(128)) for offset in (0, 128, 256, 384)]
    [0, 144, 288, 432]
    """
    if span not in (0, 32, 64, WIDEST_SWIZZLE):
        raise ValueError(f"no swizzle of {span} bytes")
    return max(0, span - 16)


def _offset(digits: Digits, number: int) -> int:
    offset = 0
    for extent, stride in digits:
        number, digit = divmod(number, extent)
        offset += digit * stride
    return offset
