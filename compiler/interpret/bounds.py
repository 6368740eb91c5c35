"""Error bounds of Tensor IR programs: how far correct results may be from exact arithmetic.

Errors are propagated through every equation: scalar operations by bounded.py; sums, scans and scatters by
accumulated.py. A result y is right if |y - v| <= min(e1, LAMBDA * (sqrt(e2) + shared)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.interpret import accumulated, bounded, scalar
from compiler.interpret.accumulated import Moments
from compiler.interpret.bounded import (
    ZERO,
    Accuracy,
    Bounded,
    distance,
    make_bounded,
    shared_deviation,
    undecided,
    variance,
    worst_error,
)
from compiler.interpret.grid import Grid, Take, evaluate
from compiler.interpret.scalar import Array
from compiler.interpret.tensor import evaluate_with
from compiler.ir.dtype import DType
from compiler.ir.expr import Load, names
from compiler.ir.tensor import Program

MOST_STEPS = 2  # an index that may be further away from the likeliest one may be anywhere


def bounds(
    program: Program,
    arrays: Sequence[Array | Bounded],
    accuracy: Accuracy | None = None,
    moments: Callable[[Array, Array], Moments] = accumulated.moments,
) -> tuple[Bounded, ...]:
    """Evaluate a program with error bounds: one bounded value per output.

    `arrays` has a value per input, in the program's order: an array if the input is exact, else a bounded value.
    `accuracy` describes the implementation. `moments` computes the sums that the bounds of matmuls need, which is most
    of the work for large ones.
    """
    algebra = Propagation(accuracy or Accuracy(), moments)
    inputs = [
        a if isinstance(a, Bounded) else Bounded(np.asarray(a).astype(scalar.storage(t.dtype, True)))
        for t, a in zip(program.inputs, arrays, strict=True)
    ]
    values = evaluate_with(algebra, program, inputs)
    return tuple(values[t.name] for t in program.outputs)


@dataclass(frozen=True)
class Propagation:
    """The algebra of bounded values."""

    accuracy: Accuracy
    moments: Callable[[Array, Array], Moments] = accumulated.moments

    def constant(self, value: bool | int | float, dtype: DType) -> Bounded:
        return bounded.constant(value, dtype)

    def integers(self, x: Array) -> Bounded:
        return Bounded(x)

    def op(self, name: str, args: tuple[Bounded, ...], dtype: DType) -> Bounded:
        return bounded.operation(name, args, dtype, self.accuracy)

    def cast(self, x: Bounded, source: DType, target: DType) -> Bounded:
        return bounded.converted(x, source, target, self.accuracy)

    def select(self, cond: Bounded, then: Bounded, other: Bounded) -> Bounded:
        return bounded.choose(cond, then, other)

    def possible(self, cond: Bounded) -> tuple[Array, Array]:
        undecided = worst_error(cond) > 0
        return cond.v | undecided, ~cond.v | undecided

    def candidates(self, index: Bounded) -> list[Array]:
        if index.e1 is None:
            return [index.v]
        steps = _steps(index)
        return [index.v, index.v - steps, index.v + steps]

    def places(self, index: Bounded) -> list[Array]:
        steps = _steps(index)
        reach = range(1, min(int(steps.max(initial=0)), MOST_STEPS) + 1)
        return [index.v, *(index.v + sign * np.minimum(steps, k) for k in reach for sign in (-1, 1))]

    def take(self, load: Load, stored: Bounded, takes: list[Take], grid: Grid[Bounded]) -> Bounded:
        found = stored.map(takes[0])
        if len(takes) > 1:
            step: Array = ZERO
            for elsewhere in takes[1:]:
                error = ZERO if stored.e1 is None else elsewhere(stored.e1)
                step = np.maximum(step, distance(elsewhere(stored.v), found.v) + error)
            for index in load.index:
                is_far = _steps(evaluate(index, grid)) > MOST_STEPS
                step = np.where(is_far, np.maximum(step, _spread(found.v, stored)), step) if is_far.any() else step
            e2 = variance(found) + undecided(step)
            return make_bounded(found.v, worst_error(found) + step, e2, shared_deviation(found))
        if found.e1 is None:
            return found
        used = set().union(*(names(i) for i in load.index))
        return found if all(s.name in used or s.size <= 1 for s in grid.spans) else found.common()

    def shape(self, x: Bounded) -> tuple[int, ...]:
        return x.v.shape

    def ranked(self, x: Bounded, rank: int) -> Bounded:
        return x.map(lambda a: a.reshape(a.shape + (1,) * (rank - a.ndim)) if a.ndim else a)

    def full(self, x: Bounded, shape: tuple[int, ...]) -> Bounded:
        return x.full(shape)

    def rearrange(self, x: Bounded, how: Take) -> Bounded:
        return x.full(x.v.shape).map(how)

    def concatenate(self, parts: list[Bounded], axis: int) -> Bounded:
        v = np.concatenate([p.v for p in parts], axis)
        if all(p.e1 is None for p in parts):
            return Bounded(v)
        errors = zip(*(bounded.errors(p) for p in parts), strict=True)
        return make_bounded(v, *(np.concatenate(e, axis) for e in errors))

    def reduce(self, op: str, x: Bounded, axes: tuple[int, ...], dtype: DType) -> Bounded:
        out = accumulated.reduce(op, x, axes, dtype, self.accuracy)
        return out.full(out.v.shape)

    def contract(self, a: Bounded, b: Bounded, dtype: DType) -> Bounded:
        return accumulated.contract(a, b, dtype, self.accuracy, self.moments)

    def scan(self, op: str, x: Bounded, axis: int, dtype: DType) -> Bounded:
        return accumulated.scan(op, x, axis, dtype, self.accuracy).full(x.v.shape)

    def order(self, how: str, x: Bounded, axis: int) -> Bounded:
        return accumulated.order(how, x, axis)

    def scatter(self, op: str, base: Bounded, index: tuple[Array, ...], value: Bounded, dtype: DType) -> Bounded:
        return accumulated.scatter(op, base, index, value, dtype, self.accuracy).full(base.v.shape)

    def scatter_undecided(self, op: str, base: Bounded, index: tuple[Array, ...], value: Bounded) -> Bounded:
        return accumulated.scatter_undecided(op, base, index, value)


def _steps(index: Bounded) -> Array:
    """How many places an index may be off."""
    return np.asarray(np.ceil(np.minimum(worst_error(index), 2.0**31)), np.int64)


def _spread(found: Array, stored: Bounded) -> Array:
    """How far any element may be from the ones found."""
    if not stored.v.size:
        return ZERO
    ends = (np.asarray(pick(stored.v)) for pick in (np.min, np.max))
    return np.asarray(np.maximum.reduce([distance(end, found) for end in ends]) + np.max(worst_error(stored)))
