"""The state of a Tile IR kernel while it is interpreted, and the points for which a statement runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from compiler.interpret.grid import Grid, InterpretError, Span, Take, evaluate
from compiler.interpret.scalar import Array
from compiler.interpret.tensor import Plain
from compiler.ir.dtype import DType, i64
from compiler.ir.expr import Expr, Load, Var, dim
from compiler.ir.text import show


@dataclass
class Mbarriers:
    """The state of an array of mbarriers; there is one array per point of the axes that `private` indexes.

    Threads of `blocks` blocks arrive at each.
    """

    arrivals: int
    private: tuple[Expr, ...]
    pending: Array
    bytes: Array
    phase: Array
    blocks: int = 1
    changes: int = 0

    def has_ended(self, at: tuple[Array, ...], parity: Array) -> bool:
        return bool((self.phase[at] != parity).all())

    def arrive(self, at: tuple[Array, ...], arrivals: int, expected: int) -> bool:
        """Count arrivals, and expected bytes (negative for bytes that came); false if more arrive than should."""
        self.changes += 1
        self.pending[at] -= arrivals
        self.bytes[at] += expected
        is_expected = bool((self.pending[at] >= 0).all())
        completed = (self.pending == 0) & (self.bytes == 0)
        self.phase[completed] ^= 1
        self.pending[completed] = self.arrivals
        return is_expected


def make_mbarriers(points: list[int], count: int, arrivals: int, private: tuple[Expr, ...], blocks: int) -> Mbarriers:
    shape = (*points, count)
    bytes_, phase = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    return Mbarriers(arrivals, private, np.full(shape, arrivals, np.int64), bytes_, phase, blocks)


WARP = 32


@dataclass(frozen=True)
class Checked(Plain):
    """Plain numbers from buffers that track which of their elements were written."""

    written: dict[str, Array] = field(default_factory=dict)

    def take(self, load: Load, stored: Array, takes: list[Take], grid: Grid[Array]) -> Array:
        if load.buffer in self.written:
            blank = ~takes[0](self.written[load.buffer])
            if blank.any() and (grid.taken is None or (blank & grid.taken).any()):
                raise InterpretError(
                    f"{grid.where}: {show(load)} reads an element of {load.buffer} before it is written"
                )
        return takes[0](stored)


@dataclass
class Machine:
    """The state of one kernel: its buffers, which of their elements were written, and the variables in scope."""

    where: str
    sizes: dict[str, int]
    types: dict[str, DType]
    memory: dict[str, Array]
    written: dict[str, Array]
    values: dict[str, Array] = field(default_factory=dict)
    depth: dict[str, int] = field(default_factory=dict)  # open axes where a mutable scalar was initialised
    private: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    mbarriers: dict[str, Mbarriers] = field(default_factory=dict)
    warps: int = 1  # of the role
    rings: set[str] = field(default_factory=set)  # tiles with a copy per slot

    def role(self, threads: int) -> Machine:
        """The machine for a role, with its own variables and slots."""
        return replace(self, warps=threads // WARP, values=dict(self.values), depth=dict(self.depth),
                       private=dict(self.private))  # fmt: skip


@dataclass(frozen=True)
class Here:
    """The points for which a statement runs: the open axes, and which of their points take part."""

    spans: tuple[Span, ...] = ()
    taken: Array | None = None

    def open(self, span: Span) -> Here:
        taken = self.taken if self.taken is None or self.taken.ndim == 0 else self.taken[..., None]
        return Here((*self.spans, span), taken)

    def where(self, cond: Array) -> Here:
        return replace(self, taken=cond if self.taken is None else self.taken & cond)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(s.size for s in self.spans)


def _grid(machine: Machine, here: Here) -> Grid[Array]:
    return Grid(
        Checked(written=machine.written), machine.memory, machine.sizes, machine.where, here.spans,
        machine.values, machine.private, here.taken,
    )  # fmt: skip


def evaluate_at(e: Expr, machine: Machine, here: Here) -> Array:
    return evaluate(e, _grid(machine, here))


def points_of(here: Here) -> tuple[Expr, ...]:
    """The position of a point along the open axes."""
    return tuple(Var(n.name, i64) - dim(n.start) for n in here.spans)
