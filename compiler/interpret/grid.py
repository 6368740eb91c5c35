"""Evaluation of expressions over a grid of points.

Axis k of the grid is dimension k of the arrays, which stay as small as broadcasting allows. Values belong to an
`Algebra`: plain numbers (tensor.py) or numbers with error bounds (bounds.py). `Select` is lazy: its sides are evaluated
everywhere, but their loads must be in bounds only where the side is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from compiler.errors import CompilerError, InvalidData
from compiler.interpret.scalar import Array
from compiler.ir.dtype import DType
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var
from compiler.ir.text import show

T = TypeVar("T")
Take = Callable[[Array], Array]


class InterpretError(CompilerError):
    """A program does what its IR forbids; found while interpreting it."""


class Algebra(Protocol[T]):
    """The values that expressions are evaluated to."""

    def constant(self, value: bool | int | float, dtype: DType) -> T: ...

    def integers(self, x: Array) -> T:
        """Integers that are known exactly, such as the points of an axis."""

    def op(self, name: str, args: tuple[T, ...], dtype: DType) -> T:
        """A row of `OPS`; `dtype` is the type of the last argument."""

    def cast(self, x: T, source: DType, target: DType) -> T: ...

    def select(self, cond: T, then: T, other: T) -> T: ...

    def possible(self, cond: T) -> tuple[Array, Array]:
        """Where a condition may be true, and where it may be false."""

    def candidates(self, index: T) -> list[Array]:
        """The likeliest value of an index, and the ends of the interval in which it may be."""

    def places(self, index: T) -> list[Array]:
        """The values that an index may have, the likeliest one first; of many, those next to it."""

    def take(self, load: Load, stored: T, takes: list[Take], grid: Grid[T]) -> T:
        """The value of `load` from `stored`: elements picked by the first of `takes`, or possibly by another."""

    def shape(self, x: T) -> tuple[int, ...]: ...

    def ranked(self, x: T, rank: int) -> T:
        """`x` with dimensions of 1 appended until it has `rank`; scalars unchanged."""


@dataclass(frozen=True)
class Span:
    """The points `start` .. `stop - 1` of the axis `name`."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Grid(Generic[T]):
    """Where expressions are evaluated: axes, tensors that loads read, and, under a `Select`, the points taken."""

    algebra: Algebra[T]
    tensors: Mapping[str, T]
    sizes: Mapping[str, int]
    where: str  # for messages: the equation or kernel
    spans: tuple[Span, ...] = ()
    bound: Mapping[str, T] = field(default_factory=dict)  # values of names; axes opened since then are the last ones
    private: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)  # implicit leading indices of a buffer
    taken: Array | None = None
    outer: Grid[T] | None = None
    cache: dict[Expr, T] = field(default_factory=dict)

    def over(self, spans: Sequence[Span]) -> Grid[T]:
        """A grid of other axes over the same tensors."""
        return replace(self, spans=tuple(spans), taken=None, outer=None, cache={})

    def within(self, taken: Array) -> Grid[T]:
        """The points of this grid where `taken` holds."""
        both = taken if self.taken is None else self.taken & taken
        return replace(self, taken=both, outer=self, cache={})

    def position(self, axis: str) -> int:
        return next(k for k, s in enumerate(self.spans) if s.name == axis)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(s.size for s in self.spans)

    @property
    def points(self) -> int:
        return math.prod(self.shape)


def evaluate(e: Expr, grid: Grid[T]) -> T:
    """The value of `e` at every point; its arrays broadcast to the grid's shape."""
    scope: Grid[T] | None = grid
    while scope is not None:
        if e in scope.cache:
            return scope.cache[e]
        scope = scope.outer
    value = _evaluate(e, grid)
    grid.cache[e] = value
    return value


def _evaluate(e: Expr, grid: Grid[T]) -> T:
    algebra = grid.algebra
    match e:
        case Const(value, dtype):
            return algebra.constant(value, dtype)
        case Var(name):
            if name in grid.bound:
                return algebra.ranked(grid.bound[name], len(grid.spans))
            return algebra.integers(_points(name, grid))
        case Op("require", (cond, value)):
            return _require(evaluate(cond, grid), evaluate(value, grid), e.dtype, grid)
        case Op(name, args):
            return algebra.op(name, tuple(evaluate(a, grid) for a in args), args[-1].dtype)
        case Cast(arg, dtype):
            return algebra.cast(evaluate(arg, grid), arg.dtype, dtype)
        case Select():
            return _select(e, grid)
        case Load():
            return _load(e, grid)
    raise TypeError(f"{type(e).__name__} is not an expression")


def _require(cond: T, value: T, dtype: DType, grid: Grid[T]) -> T:
    """The value, 0 where the condition certainly fails; raises InvalidData if it does so at a point taken."""
    can_hold, _ = grid.algebra.possible(cond)
    if not np.all(can_hold if grid.taken is None else can_hold | ~grid.taken):
        raise InvalidData
    if can_hold.all():
        return value
    return grid.algebra.select(grid.algebra.integers(can_hold), value, grid.algebra.constant(0, dtype))


def _points(name: str, grid: Grid[T]) -> Array:
    """The coordinate of an axis at each point, or a size."""
    for k, s in enumerate(grid.spans):
        if s.name == name:
            return np.arange(s.start, s.stop, dtype=np.int64).reshape(
                [-1 if k == j else 1 for j in range(len(grid.spans))]
            )
    return np.asarray(grid.sizes[name], np.int64)


def _select(e: Select, grid: Grid[T]) -> T:
    cond = evaluate(e.cond, grid)
    can_hold, can_fail = grid.algebra.possible(cond)
    if grid.taken is not None:
        can_hold, can_fail = can_hold & grid.taken, can_fail & grid.taken
    if not can_fail.any():
        return evaluate(e.then, grid)
    if not can_hold.any():
        return evaluate(e.other, grid)
    return grid.algebra.select(cond, evaluate(e.then, grid.within(can_hold)), evaluate(e.other, grid.within(can_fail)))


def _load(e: Load, grid: Grid[T]) -> T:
    stored = grid.tensors[e.buffer]
    shape = grid.algebra.shape(stored)
    index = (*grid.private.get(e.buffer, ()), *e.index)
    plan = tuple(_plan_index(i, n, grid) for i, n in zip(index, shape, strict=True))
    # An index that is undecided in one dimension may be so in others, and there otherwise.
    places = itertools.product(*([p] if isinstance(p, int | Span) else p for p in plan))
    takes = [_make_take(e, chosen, shape, grid, certain=k == 0) for k, chosen in enumerate(places)]
    return grid.algebra.take(e, stored, takes, grid)


def _plan_index(index: Expr, extent: int, grid: Grid[T]) -> int | Span | list[Array]:
    """How one dimension is indexed: at one place, by a stretch of an axis, or by computed numbers."""
    match index:
        case Const(int() as value) if 0 <= value < extent:
            return value
        case Var(name):
            span = next((s for s in grid.spans if s.name == name), None)
            if span is not None and span.stop <= extent:
                return span
    return grid.algebra.places(evaluate(index, grid))


def _make_take(
    e: Load, index: Sequence[int | Span | Array], shape: tuple[int, ...], grid: Grid[T], certain: bool
) -> Take:
    """How to pick the elements of a load. Out of bounds is an error if the load is `certain` to happen."""
    rank = len(grid.spans)
    checked = [
        i if isinstance(i, int | Span) else _in_bounds(e, d, i, n, grid, certain)
        for d, (i, n) in enumerate(zip(index, shape, strict=True))
    ]
    if any(n == 0 and not isinstance(i, Span) for i, n in zip(checked, shape, strict=True)):
        return lambda stored: np.zeros((1,) * rank, stored.dtype)  # nothing is taken, or it would be out of bounds
    axes = [_axes_of_index(i, grid) for i in checked]
    flat = [a for dims in axes for a in dims]
    if len(set(flat)) == len(flat):
        return lambda stored: _separable(stored, checked, axes, rank)
    arrays = tuple(_points(i.name, grid) if isinstance(i, Span) else np.asarray(i) for i in checked)
    return lambda stored: np.asarray(stored[arrays])


def _in_bounds(e: Load, d: int, index: Array, extent: int, grid: Grid[T], certain: bool) -> Array:
    """The index, moved into bounds at points where the load does not happen."""
    if index.size == 0 or (index.min() >= 0 and index.max() < extent):
        return index
    outside = (index < 0) | (index >= extent)
    if certain:
        raise_out_of_bounds(
            outside if grid.taken is None else outside & grid.taken, index, extent, f"{show(e)} reads", d, grid.where
        )
    return np.asarray(np.clip(index, 0, max(0, extent - 1)))


def raise_out_of_bounds(outside: Array, index: Array, extent: int, what: str, dimension: int, where: str) -> None:
    """Raise InterpretError if any point is `outside`, with the first index that is."""
    if outside.any():
        first = np.broadcast_to(index, outside.shape)[outside].flat[0]
        raise InterpretError(
            f"{where}: index out of bounds: {what} element {first} along dimension {dimension}, which has {extent}"
        )


def _axes_of_index(index: int | Span | Array, grid: Grid[T]) -> tuple[int, ...]:
    """The grid dimensions along which an index varies."""
    match index:
        case int():
            return ()
        case Span(name):
            return (grid.position(name),)
    return tuple(k for k, n in enumerate(index.shape) if n != 1)


def _separable(stored: Array, index: list[int | Span | Array], axes: list[tuple[int, ...]], rank: int) -> Array:
    """Elements picked dimension by dimension, if no axis of the grid indexes two of them."""
    out = stored
    for d in reversed(range(len(index))):
        i = index[d]
        if isinstance(i, Span):
            out = out[(slice(None),) * d + (slice(i.start, i.stop),)]
        else:
            out = np.take(out, i if isinstance(i, int) else i.reshape([i.shape[k] for k in axes[d]]), axis=d)
    order = [k for dims in axes for k in dims]
    out = out.transpose(sorted(range(len(order)), key=order.__getitem__))
    present = sorted(order)
    return out.reshape([out.shape[present.index(k)] if k in present else 1 for k in range(rank)])
