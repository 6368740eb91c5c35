"""The meaning of names at a point of a kernel for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.expr import Expr, const
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor


@dataclass(frozen=True)
class Lanes:
    """The vector loop being emitted.

    `var` is its variable, which has the value `base`, a multiple of `multiple`, in lane 0; there are `width` lanes.
    With `masked`, guards of loads become masks.
    """

    var: str
    base: Expr
    width: int
    multiple: int = 1
    masked: bool = False

    @classmethod
    def of(cls, loop: tile.For, base: Expr, width: int, multiple: int) -> Lanes:
        """The lanes of a loop bound to `vector`."""
        return cls(loop.var, base, width, multiple, bool(dict(loop.bind.args).get("masked")))


@dataclass
class Scope:
    """The meaning of names; `ranges` bounds the integers; `parallel` means inside a parallel loop."""

    values: dict[str, Expr]
    ranges: dict[str, Range]
    buffers: dict[str, Tensor]
    lanes: Lanes | None = None
    parallel: bool = False
    suffix: str = ""
    sums: frozenset[str] = frozenset()  # accumulators that already include the first `again` lanes
    again: int = 0

    def inner(self, **changes: object) -> Scope:
        return replace(self, values=dict(self.values), ranges=dict(self.ranges), buffers=dict(self.buffers), **changes)  # type: ignore[arg-type]


def iterations(f: tile.For, count: int, scope: Scope) -> Iterator[Scope]:
    """The scope of each iteration of a loop."""
    for n in range(count):
        inner = scope.inner(suffix=f"{scope.suffix}_{n}")
        inner.values[f.var] = const(n)
        yield inner


def overlapping_vectors(f: tile.For, count: int, width: int, scope: Scope) -> Iterator[Scope]:
    """The scope of each vector of a loop of `count` iterations, the last of which may overlap the one before it."""
    last = count - width
    for n, base in enumerate((*range(0, last, width), last)):
        inner = scope.inner(lanes=Lanes.of(f, const(base), width, base), suffix=f"{scope.suffix}_{n}")
        inner.ranges[f.var] = (base, base + width - 1)
        yield inner
