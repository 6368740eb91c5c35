"""What names stand for at a place in a kernel of threads, and at which level of the machine that place is."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from compiler.analysis.argmax import Extreme
from compiler.ir import kernel as k
from compiler.ir.expr import Expr, Var
from compiler.ir.layout import Fragment, ThreadMap
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor

WARP = 32
THREAD: Expr = k.Builtin("thread.x")


@dataclass(frozen=True)
class Lanes:
    """The loop over threads around a statement: its variable, how it is spread, and where this thread's part lies.

    `slot` counts the elements that a thread has had of it, which is where a tile in registers keeps them.
    """

    var: str
    thread_map: ThreadMap
    slot: Expr


@dataclass(frozen=True)
class Part:
    """Where a statement is within a thread's part of a fragment: how far rows and columns are from where that begins.

    `columns` is empty outside of the loop over columns.
    """

    fragment: Fragment
    rows: str
    row: Expr
    columns: str = ""
    column: Expr | None = None


@dataclass(frozen=True)
class Role:
    """The threads that do the same in a block: how many, the number of the first, and the registers that each kept,
    where they gave others away."""

    threads: int
    first: int = 0
    kept: int = 0


class Guarded(NamedTuple):
    """What neighbours were loaded under, which holds for all iterations 0 .. width - 1 of `lane` or for none."""

    guard: Expr
    lane: Var
    width: int


@dataclass
class Scope:
    """`level` says which threads do the same: of a "block", of a "warp", of a "column" of warps, or one "thread"."""

    values: dict[str, Expr]
    ranges: ChainMap[str, Range]  # what outer scopes come to know, inner ones do
    buffers: dict[str, Tensor]
    role: Role
    level: str = "block"
    # Tiles in registers: the name of each thread's share, and how loops over threads spread those that they do.
    registers: dict[str, str] = field(default_factory=dict)
    thread_maps: dict[str, ThreadMap] = field(default_factory=dict)
    lanes: Lanes | None = None
    part: Part | None = None
    # Loads that were made beforehand: which buffer and flat index stand where.
    ready: dict[tuple[str, Expr], tuple[str, Expr]] = field(default_factory=dict)
    # Arrays of these in which zeros are where a guard of `width` lanes does not hold.
    zeros: dict[str, Guarded] = field(default_factory=dict)
    # Buffers whose stores are gathered, and in which array.
    gathered: dict[str, tuple[str, Expr]] = field(default_factory=dict)
    # What is known to divide variables.
    multiples: dict[str, int] = field(default_factory=dict)
    # Tiles that each thread has for itself, whole.
    local: frozenset[str] = frozenset()
    # Extremes that loops over threads have found, with how those were spread and the variables of the threads' own.
    extremes: tuple[tuple[Extreme, ThreadMap, Var], ...] = ()
    after_barrier: bool = False  # all parts of the tile of a group of blocks have been made

    def inner(self, **changes: object) -> Scope:
        return replace(self, values=dict(self.values), ranges=self.ranges.new_child(), buffers=dict(self.buffers),
                       registers=dict(self.registers), **changes)  # type: ignore[arg-type]  # fmt: skip

    def tile_ranges(self) -> Mapping[str, Range]:
        """Ranges by the names that Tile IR uses."""
        known = {n: self.ranges[v.name] for n, v in self.values.items() if isinstance(v, Var) and v.name in self.ranges}
        return ChainMap(known, self.ranges)
