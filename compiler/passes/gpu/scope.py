"""The meaning of names at a point of a GPU kernel, and the level of the machine that executes it."""

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
    """The loop over threads around a statement: its variable, its assignment to threads, and this thread's position.

    `slot` counts the elements that the thread has had so far, which indexes its share of a tile in registers.
    """

    var: str
    thread_map: ThreadMap
    slot: Expr


@dataclass(frozen=True)
class Part:
    """The position of a statement in a thread's part of a fragment: offsets of row and column from its beginning.

    `columns` is empty outside of the loop over columns.
    """

    fragment: Fragment
    rows: str
    row: Expr
    columns: str = ""
    column: Expr | None = None


@dataclass(frozen=True)
class Role:
    """The threads of a role in a block: their number, the index of the first, and the registers `kept` by each."""

    threads: int
    first: int = 0
    kept: int = 0


class Guarded(NamedTuple):
    """The guard of a load of adjacent elements, which holds for all iterations 0 .. width - 1 of `lane` or for none."""

    guard: Expr
    lane: Var
    width: int


@dataclass
class Scope:
    """The meaning of names. `level` tells who executes together: a "block", "warp", "column" of warps, or "thread"."""

    values: dict[str, Expr]
    ranges: ChainMap[str, Range]  # inner scopes see what outer ones learn later
    buffers: dict[str, Tensor]
    role: Role
    level: str = "block"
    # Tiles in registers: the array of each thread's share, and how loops over threads distribute them.
    registers: dict[str, str] = field(default_factory=dict)
    thread_maps: dict[str, ThreadMap] = field(default_factory=dict)
    lanes: Lanes | None = None
    part: Part | None = None
    # Loads issued beforehand: from (buffer, flat index) to (array, index).
    ready: dict[tuple[str, Expr], tuple[str, Expr]] = field(default_factory=dict)
    # Arrays among these that hold zeros where their guard fails.
    zeros: dict[str, Guarded] = field(default_factory=dict)
    # Buffers whose stores are gathered in an array, to be stored at once.
    gathered: dict[str, tuple[str, Expr]] = field(default_factory=dict)
    # Known divisors of variables.
    multiples: dict[str, int] = field(default_factory=dict)
    # Tiles that each thread holds entirely.
    local: frozenset[str] = frozenset()
    # Extremes found by loops over threads, with the thread map and the variable of the thread's own extreme.
    extremes: tuple[tuple[Extreme, ThreadMap, Var], ...] = ()
    after_barrier: bool = False  # all parts of the group's tile are complete

    def inner(self, **changes: object) -> Scope:
        return replace(self, values=dict(self.values), ranges=self.ranges.new_child(), buffers=dict(self.buffers),
                       registers=dict(self.registers), **changes)  # type: ignore[arg-type]  # fmt: skip

    def tile_ranges(self) -> Mapping[str, Range]:
        """Ranges by the names that Tile IR uses."""
        known = {n: self.ranges[v.name] for n, v in self.values.items() if isinstance(v, Var) and v.name in self.ranges}
        return ChainMap(known, self.ranges)
