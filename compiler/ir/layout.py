"""How a tile in registers is distributed over threads: as operands of tensor instructions, or by a loop over lanes."""

from __future__ import annotations

import functools
import math

from compiler.ir.expr import Expr
from compiler.ir.node import Node


class Digit(Node):
    """A digit of a mixed-radix number, and the step in the tile's rows and columns for one unit of it."""

    extent: int
    row: int
    column: int


class Fragment(Node):
    """A tile of `shape` in registers: positions are sums of steps over the digits of thread and register numbers.

    Threads are those of the whole block, fastest digit first; digits without a step mean that threads hold copies. An
    instruction takes `unit` registers; `strides` gives the registers between instructions along an axis.
    """

    shape: tuple[int, int]
    threads: tuple[Digit, ...]
    registers: tuple[Digit, ...]
    unit: int = 1
    strides: tuple[tuple[str, int], ...] = ()

    @property
    def count(self) -> int:
        """Registers per thread, in elements."""
        return math.prod(d.extent for d in self.registers)

    def stride(self, axis: str) -> int:
        """Registers between instructions along an axis; 0 if there is only one instruction."""
        return dict(self.strides).get(axis, 0)


class ThreadMap(Node):
    """The assignment of a loop's iterations to threads: `vector` adjacent ones to each of `threads`, then again."""

    extent: Expr
    threads: int
    vector: int


@functools.lru_cache(1024)
def problem(layout: Fragment) -> str:
    """Why the layout does not cover the tile with every element in some register; empty if it does."""
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
