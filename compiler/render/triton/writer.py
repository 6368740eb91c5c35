"""State of rendering one kernel for Triton: loops over lanes as tensor axes, masks, computed values, and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Const, Expr, Op, fresh
from compiler.ir.multiples import power
from compiler.ir.node import Node
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import value_range
from compiler.render.triton.values import LOOSE, NONE, RESERVED, Axes, Value

LONGEST_UNNAMED = 90  # characters; longer expressions are given a name


@dataclass(frozen=True)
class Lane:
    """A loop over lanes: a tensor axis of `size` elements, of which those below `end` exist (None: all)."""

    var: str
    size: int
    end: Expr | None


def lane_axis(f: tile.For, ranges: Mapping[str, Range], min_size: int = 1) -> Lane:
    """The axis of a loop, of at least `min_size` elements. Raises ValueError if its extent has no known bound."""
    _, upper_bound = value_range(f.extent, ranges)
    if upper_bound is None:
        raise ValueError(f"loop {f.var} over lanes has no known length")
    size = max(min_size, power(upper_bound))
    if isinstance(f.extent, Const) and f.extent.value == size:
        return Lane(f.var, size, None)
    match f.extent:
        case Op("min", (Const(int() as bound), rest)) if bound == size:
            return Lane(f.var, size, rest)
    return Lane(f.var, size, f.extent)


class Writer:
    """The lines so far, and what is in scope, by name.

    `dims` has the dimension, of `rank`, of each lane. `memo` has the values of expressions, one dict per open loop.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], rank: int, spellings: Mapping[str, str], taken: Iterable[str]
    ) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.tensors, self.rank, self.spellings = dict(tensors), rank, spellings
        self.taken = {*taken, *RESERVED}
        self.ranges: dict[str, Range] = {}
        self.lanes: dict[str, Lane] = {}
        self.dims: dict[str, int] = {}
        self.env: dict[str, Value] = {}
        self.lets: dict[str, Expr] = {}
        self.guards: tuple[Value, ...] = ()
        self.memo: list[dict[object, Value]] = [{}]
        self.uses: Counter[Node] = Counter()
        self.helpers: set[str] = set()
        self.local: set[str] = set()  # tiles kept in registers
        self.barrier_buffers: set[str] = set()  # buffers whose accesses need barriers
        self.written: set[str] = set()  # buffers stored to since the last barrier
        self.read: set[str] = set()
        self.failing = False

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, stem: str) -> str:
        return fresh(stem if stem.isidentifier() else "t", self.taken)

    def lookup(self, key: object) -> Value | None:
        return next((memo[key] for memo in reversed(self.memo) if key in memo), None)

    def remember(self, key: object, v: Value) -> Value:
        self.memo[-1][key] = v
        return v

    def assign(self, v: Value, stem: str) -> Value:
        """Assign the value to a new name."""
        name = self.name(stem)
        self.line(f"{name} = {v.code}")
        return Value(name, v.dtype, v.axes, v.narrow)

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """Lines of a loop; values named in it are forgotten after it."""
        self.line(head)
        self.indent += 1
        self.memo.append({})
        yield
        self.memo.pop()
        self.indent -= 1

    @contextmanager
    def guarded(self, cond: Value) -> Iterator[None]:
        outer_guards, self.guards = self.guards, (*self.guards, cond)
        yield
        self.guards = outer_guards

    @contextmanager
    def with_axes(self, order: Sequence[str]) -> Iterator[None]:
        """Make these lanes the axes of tensors, in this order."""
        outer_axes = self.dims, self.rank
        self.dims, self.rank = {var: d for d, var in enumerate(order)}, len(order)
        yield
        self.dims, self.rank = outer_axes

    # ---- lanes

    def shape(self, axes: Axes) -> str:
        sizes = [1] * self.rank
        for var in axes:
            sizes[self.dims[var]] = self.lanes[var].size
        return f"[{', '.join(map(str, sizes))}]"

    def index(self, var: str) -> Value:
        """The indices along a lane, as a tensor of the current rank."""
        if var not in self.dims:
            raise ValueError(f"{var} is not an axis here")
        key = ("index", var, self.dims[var], self.rank)
        cached = self.lookup(key)
        if cached is None:
            subscripts = ", ".join(":" if d == self.dims[var] else "None" for d in range(self.rank))
            code = f"tl.arange(0, {self.lanes[var].size})" + (f"[{subscripts}]" if self.rank > 1 else "")
            cached = self.remember(key, self.assign(Value(code, i64, frozenset({var}), narrow=True), var))
        return cached

    def broadcast(self, v: Value, axes: Axes) -> Value:
        """Broadcast along more axes."""
        if axes <= v.axes:
            return v
        if not v.axes:
            return Value(f"tl.full({self.shape(axes)}, {v.code}, {v.type})", v.dtype, axes, v.narrow)
        return Value(f"tl.broadcast_to({v.typed}, {self.shape(axes | v.axes)})", v.dtype, axes | v.axes, v.narrow)

    def barrier(self) -> None:
        """A barrier of the program's threads, if there are accesses to order."""
        if self.written or self.read:
            self.line("tl.debug_barrier()")
            self.written, self.read = set(), set()


def conjunction(conditions: Sequence[Value]) -> Value | None:
    """The conjunction of all; None if there are none."""
    if not conditions:
        return None
    axes = NONE.union(*(c.axes for c in conditions))
    if len(conditions) == 1:
        return conditions[0]
    return Value(" & ".join(c.operand for c in conditions), boolean, axes, level=LOOSE)
