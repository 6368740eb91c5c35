"""Resizing of images: each element is read at a position of the input, exactly or between its neighbours.

Positions are exact fractions of integers, so no rounding decides which element is read; torch computes them in floating
point. Where that makes `nearest` read another element than the fraction says, its floating formula is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from inspect import Parameter, Signature

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, f32, i64
from compiler.ir.expr import Expr, cast, const, op, static
from compiler.ir.index import simplify
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, set_dim
from compiler.passes.torch_to_tensor.positions import moved, ranges

Scales = Sequence[float | None] | None
Tap = tuple[Expr, Expr]  # an index, and its weight

# A scale factor is the fraction that it was meant to be: 0.1 is 1/10.
LARGEST_DENOMINATOR = 2**20


@dataclass(frozen=True)
class Line:
    """One dimension: `extent` elements become `wanted`, by a scale factor if there was one."""

    extent: int
    wanted: int
    factor: float | None

    @property
    def step(self) -> Fraction:
        """Elements of the input for each of the result."""
        if self.factor is not None and self.factor > 0:
            return 1 / Fraction(self.factor).limit_denominator(LARGEST_DENOMINATOR)
        return Fraction(self.extent, self.wanted)


def lines(b: Builder, x: Value, scales: Scales) -> list[Line]:
    """The dimensions after batch and channels."""
    shape = b.out.shape[2:]
    factors = list(scales) if scales else [None] * len(shape)
    made = [
        Line(static(n, "a size to resize"), static(o, "a size to resize to"), f)
        for n, o, f in zip(x.shape[2:], shape, factors, strict=True)
    ]
    if not all(line.extent for line in made):
        raise b.refuse("an input without elements")
    return made


# Nearest --------------------------------------------------------------------------------------------------------------


def nearest(line: Line, i: Expr, dtype: DType, half: float) -> Expr:
    """The element at floor((i + half) * step), as torch computes it in `dtype`."""
    step = dt.rounded(float(line.step) if line.factor else line.extent / line.wanted, dtype)

    def theirs(k: int) -> int:
        return min(math.floor(dt.rounded((k + half) * step, dtype)), line.extent - 1)

    exact = line.step.numerator, line.step.denominator
    if all(theirs(k) == min(_fraction(k, exact, half), line.extent - 1) for k in range(line.wanted)):
        numerator, denominator = (i * 2 + 1, 2 * exact[1]) if half else (i, exact[1])
        return op("min", numerator * exact[0] // denominator, line.extent - 1)
    place = op("floor", (cast(i, dtype) + half if half else cast(i, dtype)) * step)
    return op("min", cast(place, i64), line.extent - 1)


def _fraction(k: int, step: tuple[int, int], half: float) -> int:
    return (2 * k + 1) * step[0] // (2 * step[1]) if half else k * step[0] // step[1]


def _nearest(half: float) -> Callable[[Builder, Value, Scales], Value]:
    def rule(b: Builder, x: Value, scales: Scales) -> Value:
        made = lines(b, x, scales)
        dtype = x.compute if x.dtype.is_float else f32
        return moved(
            b, x, b.out.shape,
            lambda at: (*at[:2], *(nearest(line, i, dtype, half) for line, i in zip(made, at[2:], strict=True))),
        )  # fmt: skip

    return rule


# Between neighbours ---------------------------------------------------------------------------------------------------


def _position(line: Line, i: Expr, align_corners: bool) -> tuple[Expr, int]:
    """Where element i lies in the input, as numerator and denominator."""
    if align_corners:
        return (i * (line.extent - 1), line.wanted - 1) if line.wanted > 1 else (i * 0, 1)
    step = line.step
    return (i * 2 + 1) * step.numerator - step.denominator, 2 * step.denominator


def _linear_taps(line: Line, i: Expr, align_corners: bool, dtype: DType) -> list[Tap]:
    numerator, denominator = _position(line, i, align_corners)
    numerator = op("max", numerator, 0)
    last = line.extent - 1
    low = op("min", numerator // denominator, last)
    weight = cast(numerator % denominator, dtype) / cast(const(denominator), dtype)
    return [(low, const(1, dtype) - weight), (op("min", low + 1, last), weight)]


def _cubic_taps(line: Line, i: Expr, align_corners: bool, dtype: DType) -> list[Tap]:
    """Cubic convolution with a = -0.75; elements outside are those at the edge."""
    numerator, denominator = _position(line, i, align_corners)
    low = numerator // denominator
    t = cast(numerator % denominator, dtype) / cast(const(denominator), dtype)
    one = const(1, dtype)

    def near(x: Expr) -> Expr:
        return (x * 1.25 - 2.25) * x * x + 1.0

    def far(x: Expr) -> Expr:
        return ((x * -0.75 + 3.75) * x - 6.0) * x + 3.0

    weights = (far(t + 1.0), near(t), near(one - t), far(one - t + 1.0))
    inside = [op("min", op("max", low + k, 0), line.extent - 1) for k in (-1, 0, 1, 2)]
    return list(zip(inside, weights, strict=True))


def _interpolated(
    b: Builder, x: Value, align_corners: bool, scales: Scales, taps: Callable[[Line, Expr, bool, DType], list[Tap]]
) -> Value:
    if not x.dtype.is_float:
        raise b.refuse("interpolation of integers")
    shape, made = b.out.shape, lines(b, x, scales)

    def element(at: Index) -> Expr:
        known = ranges(at, shape)
        found = [taps(line, i, align_corners, x.compute) for line, i in zip(made, at[2:], strict=True)]
        return _weighted(x, at, simplify(tuple(i for t in found for pair in t for i in pair), known), len(found[0]))

    return b.map(shape, element)


def _weighted(x: Value, at: Index, taps: tuple[Expr, ...], count: int) -> Expr:
    """The sum over the taps of the first dimension of their weights times that over the others."""
    if not taps:
        return x.at(at)
    d = x.rank - len(taps) // (2 * count)
    own, rest = taps[: 2 * count], taps[2 * count :]
    out: Expr | None = None
    for k in range(count):
        part = _weighted(x, set_dim(at, d, own[2 * k]), rest, count) * own[2 * k + 1]
        out = part if out is None else out + part
    assert out is not None, "there is a tap"
    return out


def linear(b: Builder, x: Value, align_corners: bool, scales: Scales) -> Value:
    return _interpolated(b, x, align_corners, scales, _linear_taps)


def cubic(b: Builder, x: Value, align_corners: bool, scales: Scales) -> Value:
    return _interpolated(b, x, align_corners, scales, _cubic_taps)


# The overloads --------------------------------------------------------------------------------------------------------


def _rules(name: str, count: int, kind: Callable[..., Value], *options: str) -> dict[str, Rule]:
    """Both overloads, with the `options` of a kind; one has a list of scales, the other each. Sizes are known."""
    each = ("scales_d", "scales_h", "scales_w")[3 - count :] if count > 1 else ("scales",)

    def overload(tensor: str, *scales: str) -> Rule:
        given = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("b", tensor, "output_size", *options)]
        signature = Signature([*given, *(Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=None) for n in scales)])

        def rule(*args: object, **kwargs: object) -> Value:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            b, x, _, *chosen = bound.args
            own, factors = chosen[: len(options)], chosen[len(options) :]
            return kind(b, x, *own, factors[0] if scales == ("scale_factors",) else factors)

        rule.__signature__ = signature  # type: ignore[attr-defined]
        return rule

    return {f"aten.{name}.vec": overload("input", "scale_factors"), f"aten.{name}.default": overload("self", *each)}


RULES: dict[str, Rule] = {
    **_rules("upsample_nearest1d", 1, _nearest(0.0)), **_rules("_upsample_nearest_exact1d", 1, _nearest(0.5)),
    **_rules("upsample_nearest2d", 2, _nearest(0.0)), **_rules("_upsample_nearest_exact2d", 2, _nearest(0.5)),
    **_rules("upsample_nearest3d", 3, _nearest(0.0)), **_rules("_upsample_nearest_exact3d", 3, _nearest(0.5)),
    **_rules("upsample_linear1d", 1, linear, "align_corners"),
    **_rules("upsample_bilinear2d", 2, linear, "align_corners"),
    **_rules("upsample_trilinear3d", 3, linear, "align_corners"),
    **_rules("upsample_bicubic2d", 2, cubic, "align_corners"),
}  # fmt: skip
