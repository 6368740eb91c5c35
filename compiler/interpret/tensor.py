"""Reference interpreter of Tensor IR, on NumPy arrays or other values.

`evaluate_with` works for any algebra of values; `run` and `evaluate` use plain numbers, in the program's types or, with
`exact`, with every floating type held as f64 and never rounded to less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, TypeVar

import numpy as np

from compiler.interpret import scalar
from compiler.interpret.grid import Algebra, Grid, InterpretError, Span, Take, raise_out_of_bounds
from compiler.interpret.grid import evaluate as value_of
from compiler.interpret.scalar import Array
from compiler.ir import sizes, statement
from compiler.ir.dtype import DType
from compiler.ir.expr import COMBINE, Const, Expr, Load, names
from compiler.ir.linear import factors_of
from compiler.ir.tensor import Axis, Equation, Map, Order, Program, Reduce, Scan, Scatter, equations
from compiler.ir.text import show

MOST_BETWEEN = 256  # most places between the candidates for the place of an update at which it is looked for

T = TypeVar("T")

# Matmuls with more elements than SLAB are evaluated in slabs along one of their free axes; so is everything else with
# more points than a cache holds (CACHED).
SLAB = 1 << 22
CACHED = 1 << 18


class TensorAlgebra(Algebra[T], Protocol[T]):
    """What equations need beyond expressions."""

    def full(self, x: T, shape: tuple[int, ...]) -> T:
        """`x` with all of its elements, no longer broadcast."""

    def reduce(self, op: str, x: T, axes: tuple[int, ...], dtype: DType) -> T: ...

    def contract(self, a: T, b: T, dtype: DType) -> T:
        """Batches of matmuls, (batch, m, k) by (batch, k, n)."""

    def rearrange(self, x: T, how: Take) -> T:
        """A reshape, transpose or broadcast applied to all parts of `x`."""

    def concatenate(self, parts: list[T], axis: int) -> T: ...

    def scan(self, op: str, x: T, axis: int, dtype: DType) -> T: ...

    def order(self, how: str, x: T, axis: int) -> T:
        """Argsort along an axis."""

    def scatter(self, op: str, base: T, index: tuple[Array, ...], value: T, dtype: DType) -> T: ...

    def scatter_undecided(self, op: str, base: T, index: tuple[Array, ...], value: T) -> T:
        """`base`, if it is undecided whether `value` is also scattered into it."""


@dataclass(frozen=True)
class Plain:
    """Plain numbers."""

    exact: bool = False  # every floating type is f64

    def constant(self, value: bool | int | float, dtype: DType) -> Array:
        return scalar.constant(value, dtype, self.exact)

    def integers(self, x: Array) -> Array:
        return x

    def op(self, name: str, args: tuple[Array, ...], dtype: DType) -> Array:
        return scalar.apply(name, args)

    def cast(self, x: Array, source: DType, target: DType) -> Array:
        return scalar.cast(x, source, target, self.exact)

    def select(self, cond: Array, then: Array, other: Array) -> Array:
        return np.where(cond, then, other)

    def possible(self, cond: Array) -> tuple[Array, Array]:
        return cond, ~cond

    def candidates(self, index: Array) -> list[Array]:
        return [index]

    def places(self, index: Array) -> list[Array]:
        return [index]

    def take(self, load: Load, stored: Array, takes: list[Take], grid: Grid[Array]) -> Array:
        return takes[0](stored)

    def ranked(self, x: Array, rank: int) -> Array:
        return x.reshape(x.shape + (1,) * (rank - x.ndim)) if x.ndim else x

    def shape(self, x: Array) -> tuple[int, ...]:
        return x.shape

    def full(self, x: Array, shape: tuple[int, ...]) -> Array:
        return np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(shape)

    def reduce(self, op: str, x: Array, axes: tuple[int, ...], dtype: DType) -> Array:
        return scalar.reduce(op, x, axes, dtype)

    def contract(self, a: Array, b: Array, dtype: DType) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a, b))

    def rearrange(self, x: Array, how: Take) -> Array:
        return how(x)

    def concatenate(self, parts: list[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)

    def scan(self, op: str, x: Array, axis: int, dtype: DType) -> Array:
        return scalar.accumulate(op, x, axis)

    def order(self, how: str, x: Array, axis: int) -> Array:
        return scalar.order(how, x, axis)

    def scatter(self, op: str, base: Array, index: tuple[Array, ...], value: Array, dtype: DType) -> Array:
        out = base.copy()
        scalar.combine_at(op, out, index, value)
        return out

    def scatter_undecided(self, op: str, base: Array, index: tuple[Array, ...], value: Array) -> Array:
        raise TypeError("plain numbers are certain")


def run(program: Program, arrays: Sequence[Array], *, exact: bool = False) -> tuple[Array, ...]:
    """The outputs of `program` on `arrays`, which are in the order of its inputs; bf16 is passed as float32."""
    values = evaluate(program, arrays, exact=exact)
    return tuple(values[t.name] for t in program.outputs)


def evaluate(program: Program, arrays: Sequence[Array], *, exact: bool = False) -> dict[str, Array]:
    """Every input and equation by name."""
    inputs = [
        np.asarray(a).astype(scalar.storage(t.dtype, exact), copy=False)
        for t, a in zip(program.inputs, arrays, strict=True)
    ]
    return evaluate_with(Plain(exact), program, inputs)


def evaluate_with(algebra: TensorAlgebra[T], program: Program, inputs: Sequence[T]) -> dict[str, T]:
    """Every input and equation by name, as values of `algebra`."""
    bound = bind_sizes(program, [algebra.shape(x) for x in inputs])
    known = {t.name: x for t, x in zip(program.inputs, inputs, strict=True)}
    for equation in equations(program):
        grid = Grid(algebra, known, bound, f"{program.name}: equation {equation.name}")
        known[equation.name] = define(algebra, equation, grid)
    return known


def bind_sizes(program: Program | statement.Program, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The sizes of a program from the shapes of its inputs; raises InterpretError if these do not fit."""
    declared = [(t.name, t.shape) for t in program.inputs]
    try:
        found = sizes.bind(program.sizes, declared, shapes)
    except sizes.SizeError as problem:
        raise InterpretError(f"{program.name}: {problem}") from problem
    return {s.name: n for s, n in found.items()}


def extent(e: Expr, sizes: Mapping[str, int]) -> int:
    """A size as a number."""
    if isinstance(e, Const):
        return int(e.value)
    return int(value_of(e, Grid[Array](Plain(), {}, sizes, "a size")))


def define(algebra: TensorAlgebra[T], equation: Equation, grid: Grid[T]) -> T:
    """All elements of one equation."""
    free = _spans(equation.axes, grid.sizes)
    shape = tuple(s.size for s in free)
    match equation:
        case Map():
            return _map(algebra, equation, free, grid)
        case Scan(op=op, along=along, value=value):
            inner = grid.over(free)
            return algebra.scan(op, algebra.full(value_of(value, inner), shape), inner.position(along), equation.dtype)
        case Order(along=along, how=how, over=over, value=value):
            at = grid.over(free).position(along)
            inner = grid.over((*free[:at], *_spans(over, grid.sizes), *free[at + 1 :]))
            found = algebra.order(how, algebra.full(value_of(value, inner), inner.shape), at)
            return algebra.rearrange(found, lambda x: np.take(x, np.arange(free[at].size), at))
        case Reduce():
            return _reduce(algebra, equation, free, _spans(equation.over, grid.sizes), grid)
        case Scatter():
            return _scatter(algebra, equation, free, grid)
    raise TypeError(type(equation).__name__)


def _spans(axes: tuple[Axis, ...], sizes: Mapping[str, int]) -> tuple[Span, ...]:
    return tuple(Span(a.name, 0, extent(a.extent, sizes)) for a in axes)


def _slabs(free: tuple[Span, ...], work: int, most: int) -> tuple[int, list[tuple[Span, ...]]] | None:
    """The longest axis, and `free` once per stretch of it whose share of the `work` is at most `most`.

    None if the work is little enough. No stretch has one point: error bounds depend on whether an axis has others.
    """
    longest = max(range(len(free)), key=lambda k: free[k].size, default=0)
    if work <= most or not free or free[longest].size < 4:
        return None
    whole = free[longest]
    count = min(-(-work // most), whole.size // 2)
    ends = [whole.start + n * whole.size // count for n in range(count + 1)]
    spans = [Span(whole.name, start, stop) for start, stop in itertools.pairwise(ends)]
    return longest, [(*free[:longest], span, *free[longest + 1 :]) for span in spans]


def _map(algebra: TensorAlgebra[T], equation: Map, free: tuple[Span, ...], grid: Grid[T]) -> T:
    slabs = _slabs(free, math.prod(s.size for s in free), CACHED)
    if slabs is None:
        return algebra.full(value_of(equation.value, grid.over(free)), tuple(s.size for s in free))
    axis, parts = slabs
    return algebra.concatenate([_map(algebra, equation, part, grid) for part in parts], axis)


def _reduce(
    algebra: TensorAlgebra[T], equation: Reduce, free: tuple[Span, ...], over: tuple[Span, ...], grid: Grid[T]
) -> T:
    pair = _factors(equation, free, over)
    work = [free, (*free, *over)] if pair is None else [free, *(_spans_of(f, (*free, *over)) for f in pair)]
    cost = max(math.prod(s.size for s in spans) for spans in work)
    slabs = _slabs(free, cost, CACHED if pair is None else SLAB)
    if slabs is None:
        if pair is not None:
            return _contract(algebra, pair, equation.dtype, free, over, grid)
        inner = grid.over((*free, *over))
        value = algebra.full(value_of(equation.value, inner), inner.shape)
        return algebra.reduce(equation.op, value, tuple(range(len(free), len(inner.spans))), equation.dtype)
    axis, parts = slabs
    return algebra.concatenate([_reduce(algebra, equation, part, over, grid) for part in parts], axis)


def _spans_of(e: Expr, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    mentioned = names(e)
    return tuple(s for s in spans if s.name in mentioned)


def _factors(equation: Reduce, free: tuple[Span, ...], over: tuple[Span, ...]) -> tuple[Expr, Expr] | None:
    """The two factors of a contraction: a sum of products, each lacking some free axis, neither a summed one."""
    if equation.op != "sum" or not over or equation.dtype.kind == "bool":
        return None
    all_names, summed = {s.name for s in (*free, *over)}, {s.name for s in over}
    groups = [(names(f) & all_names, f) for f in factors_of(equation.value)]
    while len(groups) > 1:
        # Factors without axes of their own are multiplied into another first; then the pair that stays smallest.
        (a_axes, a), (b_axes, b) = min(
            itertools.combinations(groups, 2),
            key=lambda p: (not (p[0][0] <= p[1][0] or p[1][0] <= p[0][0]), len(p[0][0] | p[1][0])),
        )
        if len(groups) == 2 and not a_axes <= b_axes and not b_axes <= a_axes:
            return (a, b) if summed <= a_axes & b_axes else None
        groups = [g for g in groups if g[1] is not a and g[1] is not b] + [(a_axes | b_axes, a * b)]
    return None


def _contract(
    algebra: TensorAlgebra[T],
    pair: tuple[Expr, Expr],
    dtype: DType,
    free: tuple[Span, ...],
    over: tuple[Span, ...],
    grid: Grid[T],
) -> T:
    """A contraction as batches of matmuls: each factor is evaluated over its own axes only."""
    a_names, b_names = names(pair[0]), names(pair[1])
    batch = [s for s in free if s.name in a_names and s.name in b_names]
    rows = [s for s in free if s.name in a_names and s.name not in b_names]
    columns = [s for s in free if s.name not in a_names and s.name in b_names]

    def matrix(e: Expr, *groups: Sequence[Span]) -> T:
        inner = grid.over([s for group in groups for s in group])
        shape = [math.prod(s.size for s in group) for group in groups]
        return algebra.rearrange(algebra.full(value_of(e, inner), inner.shape), lambda x: x.reshape(shape))

    product = algebra.contract(matrix(pair[0], batch, rows, over), matrix(pair[1], batch, over, columns), dtype)
    product_spans = [*batch, *rows, *columns]
    order = [product_spans.index(s) for s in free if s in product_spans]

    def arrange(x: Array) -> Array:
        return (
            x.reshape([s.size for s in product_spans])
            .transpose(order)
            .reshape([s.size if s in product_spans else 1 for s in free])
        )

    return algebra.full(algebra.rearrange(product, arrange), tuple(s.size for s in free))


def _scatter(algebra: TensorAlgebra[T], equation: Scatter, free: tuple[Span, ...], grid: Grid[T]) -> T:
    shape = tuple(s.size for s in free)
    base = algebra.full(value_of(equation.base, grid.over(free)), shape)
    if equation.op != "set" and equation.op not in COMBINE:
        raise InterpretError(f"{grid.where}: {equation.op!r} is not a reduction")
    points = grid.over(_spans(equation.over, grid.sizes))
    guard = value_of(equation.guard, points)
    possible, taken = algebra.possible(guard)[0], algebra.candidates(guard)[0]
    inner = points.within(possible)
    mask = np.broadcast_to(taken, points.shape)
    written = ", ".join(map(show, equation.index))
    places = [algebra.candidates(value_of(e, inner)) for e in equation.index]
    index = []
    for d, (where, n) in enumerate(zip(places, shape, strict=True)):
        at = np.broadcast_to(where[0], points.shape)[mask]
        outside = (at < 0) | (at >= n)
        raise_out_of_bounds(outside, at, n, f"the update at [{written}] writes", d, grid.where)
        index.append(at)
    value = algebra.full(value_of(equation.value, inner), points.shape)
    out = algebra.scatter(equation.op, base, tuple(index), algebra.rearrange(value, lambda x: x[mask]), equation.dtype)
    moved = [np.broadcast_to(np.any([w != where[0] for w in where], axis=0), points.shape) for where in places]
    maybe_elsewhere = mask & np.logical_or.reduce([np.zeros(points.shape, bool), *moved])
    undecided = np.broadcast_to(possible & ~taken, points.shape) | maybe_elsewhere
    for found, inside in _reached(places, shape, undecided, maybe_elsewhere):
        values = algebra.rearrange(value, itemgetter(inside))
        out = algebra.scatter_undecided(equation.op, out, tuple(at[inside] for at in found), values)
    return out


def _reached(
    candidates: list[list[Array]], sizes: tuple[int, ...], undecided: Array, moves: Array
) -> Iterator[tuple[list[Array], Array]]:
    """Where undecided updates may come: places for all of them, and which of them come there.

    These are their candidates, and of the places between these, unless there are many, those where others that may move
    come from: sorting nearly equal values otherwise exchanges their places.
    """
    if not undecided.any():
        return
    points, first = undecided.shape, [c[0] for c in candidates]
    for which in range(max(map(len, candidates), default=1)):
        found = [np.broadcast_to(c[which % len(c)], points) for c in candidates]
        yield found, undecided & _all([(at >= 0) & (at < n) for at, n in zip(found, sizes, strict=True)], points)
    low = [np.minimum.reduce(c).clip(0, n) for c, n in zip(candidates, sizes, strict=True)]
    high = [np.maximum.reduce(c).clip(-1, n - 1) for c, n in zip(candidates, sizes, strict=True)]
    counts = [int((b - a).max(initial=-1)) + 1 for a, b in zip(low, high, strict=True)]
    origins = np.zeros(sizes, bool)
    origins[tuple(np.broadcast_to(at, points)[moves] for at in first)] = True
    for steps in itertools.product(*map(range, counts)) if moves.any() and math.prod(counts) <= MOST_BETWEEN else ():
        found = [np.broadcast_to(a + step, points) for a, step in zip(low, steps, strict=True)]
        inside = moves & _all([at <= b for at, b in zip(found, high, strict=True)], points)
        seen = _all([np.any([at == x for x in c], axis=0) for at, c in zip(found, candidates, strict=True)], points)
        yield found, inside & ~seen & origins[tuple(np.where(inside, at, 0) for at in found)]


def _all(conditions: list[Array], points: tuple[int, ...]) -> Array:
    out: Array = np.logical_and.reduce([np.ones(points, bool), *conditions])
    return out
