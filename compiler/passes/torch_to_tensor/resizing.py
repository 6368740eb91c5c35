"""Resizing of one dimension: the input positions and weights of each element of the result.

Positions are exact fractions of integers, so rounding does not decide which element is read. Torch computes positions
in floating point. Where that makes `nearest_index` read another element than the fraction, torch's formula is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from inspect import Parameter, Signature

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, i64
from compiler.ir.expr import Expr, cast, const, op, select, static
from compiler.ir.index import simplify
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, set_dim
from compiler.passes.torch_to_tensor.positions import in_bounds, ranges

Scales = Sequence[float | None] | None

# A scale factor stands for the nearest fraction up to this denominator: 0.1 is 1/10.
LARGEST_DENOMINATOR = 2**20


@dataclass(frozen=True)
class Line:
    """One dimension: `extent` elements become `result_extent`, by a scale factor if one was given."""

    extent: int
    result_extent: int
    factor: float | None

    @property
    def step(self) -> Fraction:
        """Elements of the input per element of the result."""
        if self.factor is not None and self.factor > 0:
            return 1 / Fraction(self.factor).limit_denominator(LARGEST_DENOMINATOR)
        return Fraction(self.extent, self.result_extent)


def resized_lines(b: Builder, shape: Shape, result_shape: Shape, scales: Scales) -> list[Line]:
    """The spatial dimensions of an image of `shape` that is resized to `result_shape`."""
    factors = list(scales) if scales else [None] * len(shape[2:])
    lines = [
        Line(static(n, "a size to resize"), static(o, "a size to resize to"), f)
        for n, o, f in zip(shape[2:], result_shape[2:], factors, strict=True)
    ]
    if not all(line.extent for line in lines):
        raise b.refuse("an input without elements")
    return lines


def resizing_rule(
    formula: Callable[..., Value], tensor: str, sizes: Sequence[str], options: Sequence[str], *scales: str
) -> Rule:
    """The rule with these parameters; `formula` gets the tensor, the options and the scales. Sizes are declared."""
    parameters = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("b", tensor, *sizes, *options)]
    signature = Signature([*parameters, *(Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=None) for n in scales)])

    def resize(*args: object, **kwargs: object) -> Value:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        b, x, *values = bound.args
        option_values, factors = values[len(sizes) : len(parameters) - 2], values[len(parameters) - 2 :]
        return formula(b, x, *option_values, factors[0] if scales == ("scale_factors",) else factors)

    resize.__signature__ = signature  # type: ignore[attr-defined]
    return resize


def scale_names(count: int) -> tuple[str, ...]:
    """Torch's names of the scales of `count` dimensions."""
    return ("scales_d", "scales_h", "scales_w")[3 - count :] if count > 1 else ("scales",)


@dataclass(frozen=True)
class Position:
    """The position in the input of element i of the result: (i * slope + offset) / unit."""

    slope: int
    offset: int
    unit: int

    def numerator(self, i: Expr) -> Expr:
        return i * self.slope + self.offset

    def rounded_down(self, i: Expr) -> Expr:
        """The position, rounded down."""
        return self.numerator(i) // self.unit

    def first(self, p: Expr) -> Expr:
        """The first element of the result whose position is at or after p, if every integer is an element."""
        if not self.slope:
            return p * 0
        return (p * self.unit + (self.slope - self.offset - 1)) // self.slope


def fraction(slope: Fraction, offset: Fraction) -> Position:
    """The position i * slope + offset."""
    unit = math.lcm(slope.denominator, offset.denominator)
    return Position(int(slope * unit), int(offset * unit), unit)


# Nearest --------------------------------------------------------------------------------------------------------------


def nearest_position(line: Line, offset: float) -> Position:
    return fraction(line.step, line.step * Fraction(offset))


def _nearest_step(line: Line, dtype: DType) -> float:
    return dt.rounded(float(line.step) if line.factor else line.extent / line.result_extent, dtype)


def nearest_positions(line: Line, dtype: DType, offset: float) -> list[int]:
    """The elements that torch reads: floor((i + half) * step) for each i, computed in `dtype`."""
    step = _nearest_step(line, dtype)
    return [min(math.floor(dt.rounded((k + offset) * step, dtype)), line.extent - 1) for k in range(line.result_extent)]


def nearest_index(line: Line, i: Expr, dtype: DType, offset: float) -> Expr:
    """The element that torch reads for element i."""
    position = nearest_position(line, offset)

    def exact(i: Expr) -> Expr:
        return op("min", position.rounded_down(i), line.extent - 1)

    if all(static(exact(const(k))) == index for k, index in enumerate(nearest_positions(line, dtype, offset))):
        return exact(i)
    index = op("floor", (cast(i, dtype) + offset if offset else cast(i, dtype)) * _nearest_step(line, dtype))
    return op("min", cast(index, i64), line.extent - 1)


# Between neighbours ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interpolation:
    """An element of the result is a weighted sum of the input elements at `offsets` from its position rounded down.

    Elements outside are clamped to the edge. `weights` maps the fractional part of the position to a weight per offset.
    At an integer position only the element itself has a weight.
    """

    inside: bool  # negative positions are clamped to 0, and an unchanged size is the identity
    offsets: tuple[int, ...]
    weights: Callable[[Expr], list[Expr]]

    def position(self, line: Line, align_corners: bool) -> Position:
        """The positions of a result's elements."""
        if align_corners:
            return Position(line.extent - 1, 0, line.result_extent - 1) if line.result_extent > 1 else Position(0, 0, 1)
        step = Fraction(1) if self.inside and line.extent == line.result_extent else line.step
        return fraction(step, (step - 1) / 2)

    def taps(self, line: Line, position: Position, i: Expr, dtype: DType) -> list[tuple[Expr, Expr]]:
        """The elements that element i of the result depends on, each with its weight."""
        numerator = self._numerator(position, i)
        remainder = cast(numerator % position.unit, dtype) / cast(const(position.unit), dtype)
        return list(zip(self._tap_positions(line, position, numerator), self.weights(remainder), strict=True))

    def inputs_read(self, line: Line, position: Position, i: int) -> list[int]:
        """The elements that have a weight in element i of the result."""
        numerator = self._numerator(position, const(i))
        is_integer = static(numerator) % position.unit == 0
        elements = map(static, self._tap_positions(line, position, numerator))
        return [element for element, k in zip(elements, self.offsets, strict=True) if not (is_integer and k)]

    def _numerator(self, position: Position, i: Expr) -> Expr:
        return op("max", position.numerator(i), 0) if self.inside else position.numerator(i)

    def _tap_positions(self, line: Line, position: Position, numerator: Expr) -> list[Expr]:
        low = numerator // position.unit
        return [op("min", op("max", low + k, 0), line.extent - 1) for k in self.offsets]


def _linear(t: Expr) -> list[Expr]:
    return [const(1, t.dtype) - t, t]


def _cubic(t: Expr) -> list[Expr]:
    """Cubic convolution with a = -0.75."""
    one = const(1, t.dtype)

    def near(x: Expr) -> Expr:
        return (x * 1.25 - 2.25) * x * x + 1.0

    def far(x: Expr) -> Expr:
        return ((x * -0.75 + 3.75) * x - 6.0) * x + 3.0

    return [far(t + 1.0), near(t), near(one - t), far(one - t + 1.0)]


LINEAR = Interpolation(True, (0, 1), _linear)
CUBIC = Interpolation(False, (-1, 0, 1, 2), _cubic)


# Who reads an element -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Readers:
    """Element p of the input is read only by the `count` elements of the result from `first(p)` on."""

    position: Position
    count: int

    def first(self, p: Expr) -> Expr:
        return self.position.first(p)


def readers(at: Position, inputs_read: Sequence[Sequence[int]]) -> Readers:
    """The readers along a dimension where element i of the result reads `inputs_read[i]`, none after `at`."""
    span_of: dict[int, tuple[int, int]] = {}
    for i, inputs in enumerate(inputs_read):
        for p in inputs:
            span_of[p] = span_of.get(p, (i, i))[0], i
    lead = max(static(at.first(const(p))) - low for p, (low, _) in span_of.items())
    begin = replace(at, offset=at.offset + max(lead, 0) * at.slope)
    return Readers(begin, max(high - static(begin.first(const(p))) + 1 for p, (_, high) in span_of.items()))


def cost_order(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """The order in which to resize dimensions, given the size of each before and after.

    Those that shrink come first, as they leave less work. The last dimension, whose elements are not read in memory
    order, is resized when there are the fewest elements.
    """

    def key(d: int) -> tuple[bool, int]:
        before, after = sizes[d]
        return before < after, d if after < before else -d

    return sorted(range(len(sizes)), key=key)


def weighted_sum(b: Builder, x: Value, d: int, weights: Value, first: Callable[[Expr], Expr]) -> Value:
    """Along a dimension, for each p the sum over k of weights[k, p] times the element at first(p) + k.

    Elements with weight 0 are ignored, even if they are NaN.
    """
    count, extent = weights.shape
    shape = (*x.shape[:d], extent, *x.shape[d + 1 :])

    def term(at: Index, k: Index) -> Expr:
        var_ranges = ranges((*at, *k), (*shape, count))
        position, weight = simplify(first(at[d]) + k[0], var_ranges), weights.at((*k, at[d]))
        product = weight * x.at(set_dim(at, d, position))
        zero = const(0, product.dtype)
        return select(
            in_bounds(position, x.shape[d], var_ranges), op("where", op("eq", weight, 0), zero, product), zero
        )

    return b.reduce("sum", shape, (count,), term, "weighted")
