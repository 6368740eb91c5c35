"""Metamorphic testing: calls of a random program on altered data, whose results follow from those on the drawn data.

Along a batch axis, positions of the arguments may be permuted, dropped, or surrounded by margins of NaN; the results
change in the same way. If arguments are scaled by powers of two in the right proportions, the results are scaled by
powers of two, bit by bit. No reference is needed. `axes.py` and `degrees.py` derive from the calls of the program which
relations hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from conformance.fuzz import axes, degrees, runs
from conformance.fuzz.program import Altered, Program, call_arguments, function, gradient_flags, pick_positions
from conformance.fuzz.runs import Run
from conformance.fuzz.tracing import trace_program, values_of
from conformance.judge import oracle

RESIZED_SHARE = 0.25  # share of programs that are also compiled for other sizes
ROUNDINGS = 16.0  # roundings of the largest element by which results may differ without further checks


@dataclass(frozen=True)
class Relation:
    """A program on altered data, and the effect on each result and on each argument after the call.

    `exponents` are the powers of two by which they are scaled, `axes` their axes along which positions are picked.
    `exact` relations hold bit by bit; for others `unit` is the unit roundoff of the coarsest dtype in the program.
    """

    kind: str
    program: Program
    exponents: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    exact: bool = False
    unit: float = 0.0

    def expected(self, k: int, x: Tensor) -> Tensor:
        """Return what result k must be, without margins, if it is `x` on the drawn data."""
        picked = [n for n in self._picked if n >= 0]
        for axis in self.axes[k]:
            x = pick_positions(x, axis, picked)
        return x * 2.0 ** self.exponents[k] if self.exponents[k] else x

    def without_margins(self, k: int, y: Tensor) -> Tensor:
        """Return result k without its margins."""
        for axis in self.axes[k]:
            y = pick_positions(y, axis, [n for n, old in enumerate(self._picked) if old >= 0])
        return y

    def has_altered_length(self, k: int, y: Tensor) -> bool:
        """Return whether the axes of result k have the length of the altered arguments, including margins."""
        return all(axis < y.ndim and y.shape[axis] == len(self._picked) for axis in self.axes[k])

    @property
    def _picked(self) -> Sequence[int]:
        assert self.program.altered is not None
        return self.program.altered.picked


def relations(program: Program) -> Iterator[Relation]:
    """Yield relations that hold for a program: scaling, and permutation, slicing or margins of a random batch axis."""
    trace = trace_program(program)
    if trace is None:
        return
    rng = random.Random(f"{program.seed}.{program.index} relations")
    no_axes: tuple[tuple[int, ...], ...] = tuple(() for _ in trace.results)
    zero = tuple(0 for _ in trace.results)
    if scaling := degrees.scaling(trace, rng):
        yield Relation("scaling", replace(program, altered=Altered(scaling.arguments)), scaling.results, no_axes, True)
    families = axes.families(trace)
    if not families:
        return
    family = rng.choice(families)
    name, (axis, *_) = next(iter(family.arguments.items()))
    n = trace.arguments[name].meta["val"].shape[axis]
    order = rng.sample(range(n), n)
    while order == [*range(n)]:  # the identity would check nothing
        rng.shuffle(order)
    subset = sorted(rng.sample(range(n), rng.randint(min(family.least, n - 1), n - 1)))
    margin = [*range(n), *[-1] * rng.randint(1, 5)]
    rng.shuffle(margin)
    values = [x for node in trace.graph.graph.nodes if "val" in node.meta for x in values_of(node)]
    unit = max((oracle.UNIT[oracle.NAMES[x.dtype]] for x in values if x.is_floating_point()), default=0.0)
    chosen = [("order", order)]
    if rng.random() < RESIZED_SHARE:
        resized = rng.choice((("slice", subset), ("margin", margin)))
        chosen += [resized] if len(resized[1]) >= family.least else []
    for kind, picked in chosen:
        altered = Altered({}, family.arguments, tuple(picked))
        yield Relation(kind, replace(program, altered=altered), zero, family.results, unit=unit)


def violation(relation: Relation, before: Run, after: Run) -> str:
    """Return which result of the second call violates the relation to the first; "" if none does."""
    pairs = zip((*before.outputs, *before.inputs), (*after.outputs, *after.inputs), strict=True)
    for k, (x, y) in enumerate(pairs):
        if not relation.has_altered_length(k, y):
            return f"result {k} has shape {list(y.shape)}"
        expected, actual = relation.expected(k, x), relation.without_margins(k, y)
        if actual.shape != expected.shape:
            return f"result {k} has shape {list(y.shape)}"
        if wrong := _value_difference(actual, expected, relation):
            return f"with {relation.kind}, result {k}: {wrong}"
    return ""


def _value_difference(actual: Tensor, expected: Tensor, relation: Relation) -> str:
    if not actual.is_floating_point():
        return oracle.exact(actual, expected).message
    if relation.exact:  # except for denormal numbers, which lose bits by scaling
        smallest_normal = torch.finfo(actual.dtype).tiny
        small = (actual != expected) & (actual.abs() < smallest_normal) & (expected.abs() < smallest_normal)
        return oracle.exact(torch.where(small, expected, actual), expected).message
    a, b = actual.double(), expected.double()
    same = (a == b) | (a.isnan() & b.isnan())
    errors = torch.where(same, 0.0, torch.where(torch.isfinite(a) & torch.isfinite(b), (a - b).abs(), torch.inf))
    finite = b[torch.isfinite(b)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    worst = float(errors.max()) if errors.numel() else 0.0
    return "" if worst <= ROUNDINGS * relation.unit * largest else f"off by {worst:.3g}"


def run(function: Callable[..., Any], program: Program, device: str) -> Run:
    """Call a function on the data of a program, at the first of its sizes."""
    return runs.call(
        function, runs.copy_arguments(call_arguments(program, program.points[0]), device), gradient_flags(program)
    )


def holds_in_eager(relation: Relation, program: Program, device: str) -> bool:
    """Return whether the relation holds in eager; it may not if the program has a literal size or a rule is wrong."""
    eager = function(program)
    try:
        return not violation(relation, run(eager, program, device), run(eager, relation.program, device))
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return False


def alter(program: Program, kind: str) -> Program:
    """Return the program with the data of its relation of that kind; unchanged if it has none."""
    return next((relation.program for relation in relations(program) if relation.kind == kind), program)
