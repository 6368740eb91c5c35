"""What names stand for at a place in a kernel for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.expr import Expr
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor


@dataclass(frozen=True)
class Lanes:
    """The vector loop being emitted: its variable, whose value is `base` in lane 0, how many lanes there are, what
    divides `base`, and whether guards of loads become masks."""

    var: str
    base: Expr
    width: int
    multiple: int = 1
    masked: bool = False

    @classmethod
    def of(cls, loop: tile.For, base: Expr, width: int, multiple: int) -> Lanes:
        """Those of a loop that is bound to vectors."""
        return cls(loop.var, base, width, multiple, bool(dict(loop.bind.args).get("masked")))


@dataclass
class Scope:
    """What names stand for here; `ranges` bounds the integer ones; `parallel` says that threads are already at work."""

    values: dict[str, Expr]
    ranges: dict[str, Range]
    buffers: dict[str, Tensor]
    lanes: Lanes | None = None
    parallel: bool = False
    suffix: str = ""
    sums: frozenset[str] = frozenset()  # accumulators for which the first `again` lanes have been counted
    again: int = 0

    def inner(self, **changes: object) -> Scope:
        return replace(self, values=dict(self.values), ranges=dict(self.ranges), buffers=dict(self.buffers), **changes)  # type: ignore[arg-type]
