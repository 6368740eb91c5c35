"""How a tile in registers lies over threads: as operands of tensor instructions do, or as loops deal elements out."""

from __future__ import annotations

import functools
import math

from compiler.ir.expr import Expr
from compiler.ir.node import Node


class Digit(Node):
    """A digit of a mixed-radix number, and how far one step of it goes in the tile."""

    extent: int
    row: int
    column: int


class Fragment(Node):
    """A tile of `shape`: places of a thread's registers are sums of steps over the digits of both numbers.

    The threads are those of the whole block, fastest digit first; digits without a step mean that threads hold the
    same. An instruction takes `unit` registers, and the next one along an axis of `strides` begins so many after them.
    """

    shape: tuple[int, int]
    threads: tuple[Digit, ...]
    registers: tuple[Digit, ...]
    unit: int = 1
    strides: tuple[tuple[str, int], ...] = ()

    @property
    def count(self) -> int:
        """Registers, in elements, that each thread holds."""
        return math.prod(d.extent for d in self.registers)

    def stride(self, axis: str) -> int:
        """Registers from one instruction to the next along an axis; 0 where there is one only."""
        return dict(self.strides).get(axis, 0)


class ThreadMap(Node):
    """How the iterations of a loop go to threads: `vector` neighbours to each of `threads`, then the next round."""

    extent: Expr
    threads: int
    vector: int


@functools.lru_cache(1024)
def problem(layout: Fragment) -> str:
    """Why no threads can hold a tile so; empty where they can: every element has a register."""
    digits = (*layout.threads, *layout.registers)
    if any(d.extent < 1 or d.row < 0 or d.column < 0 or (d.row and d.column) for d in digits):
        return "a digit goes along one axis, forward"
    for axis, length in zip(("row", "column"), layout.shape, strict=True):
        places = {0}
        for d in digits:
            places = {at + n * getattr(d, axis) for at in places for n in range(d.extent if getattr(d, axis) else 1)}
        if places != set(range(length)):
            return f"its {length} {axis}s are not those that threads and registers hold"
    return ""
