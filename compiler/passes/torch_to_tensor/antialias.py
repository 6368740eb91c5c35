"""Antialiased resizing: each element is a weighted mean over a window of the input that widens as the image shrinks.

Dimensions are resized one after the other, as in torch. An element with weight 0 is ignored, even if it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from compiler.ir.dtype import DType
from compiler.ir.expr import Expr, both, cast, const, op, static
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value
from compiler.passes.torch_to_tensor.resizing import (
    Line,
    Position,
    Scales,
    by_cost,
    each_scale,
    fraction,
    lines,
    readers,
    rule,
    weighted,
)


@dataclass(frozen=True)
class Filter:
    """Weights by distance in pixels of the smaller image; 0 from `reach` on."""

    reach: int
    weight: Callable[[Expr], Expr]


def _linear(x: Expr) -> Expr:
    return op("max", const(1, x.dtype) - x, 0)


def _cubic(x: Expr) -> Expr:
    """Cubic convolution with a = -0.5."""
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = ((x * -0.5 + 2.5) * x - 4.0) * x + 2.0
    return op("where", op("lt", x, 1), near, op("where", op("lt", x, 2), far, const(0, x.dtype)))


def _lanczos(x: Expr) -> Expr:
    """sinc(x) * sinc(x / 3), using sin(3 a) = 3 s - 4 s^3."""
    angle = x * (math.pi / 3.0)
    sine = op("sin", angle)
    made = (3.0 - sine * sine * 4.0) * sine * sine / (angle * angle * 3.0)
    inside = op("where", op("lt", x, 3), made, const(0, x.dtype))
    return op("where", op("eq", x, 0), const(1, x.dtype), inside)


LINEAR, CUBIC, LANCZOS = Filter(1, _linear), Filter(2, _cubic), Filter(3, _lanczos)


@dataclass(frozen=True)
class Windows:
    """The windows of a line's elements: begin and end of each, before clipping to the image."""

    line: Line
    how: Filter
    begin: Position
    end: Position
    step: Fraction

    @property
    def length(self) -> int:
        """The longest window, before clipping to the image."""
        spans = (self.end.whole(const(i)) - self.begin.whole(const(i)) for i in range(self.line.wanted))
        return max(map(static, spans), default=0)

    def read(self, i: int) -> range:
        begin, end = static(self.begin.whole(const(i))), static(self.end.whole(const(i)))
        return range(max(begin, 0), min(end, self.line.extent))

    def weight(self, i: Expr, p: Expr, dtype: DType) -> Expr:
        """The weight of input element p in result element i, before normalisation."""
        center = fraction(self.step, self.step / 2)
        distance = op("abs", (p * 2 + 1) * center.unit - center.numerator(i) * 2)
        unit = const(float(2 * center.unit * max(self.step, Fraction(1))), dtype)
        inside = both(
            op("ge", p, 0), op("lt", p, self.line.extent),
            op("ge", p, self.begin.whole(i)), op("lt", p, self.end.whole(i)),
        )  # fmt: skip
        return op("where", inside, self.how.weight(cast(distance, dtype) / unit), const(0, dtype))


def _windows(b: Builder, line: Line, how: Filter, align_corners: bool) -> Windows:
    step = Fraction(1) if line.extent == line.wanted else line.step
    if align_corners:
        step = Fraction(line.extent - 1, line.wanted - 1) if line.wanted > 1 else Fraction(0)
    reach, half = how.reach * max(step, Fraction(1)), Fraction(1, 2)
    begin, end = fraction(step, step / 2 - reach + half), fraction(step, step / 2 + reach + half)
    made = Windows(line, how, begin, end, step)
    if not all(made.read(i) for i in range(line.wanted)):
        raise b.refuse("a scale by which some elements are made of none")
    return made


def _totals(b: Builder, windows: Windows, dtype: DType) -> Value:
    """The sum of the weights of each window."""

    def weight(at: Index, k: Index) -> Expr:
        return windows.weight(at[0], windows.begin.whole(at[0]) + k[0], dtype)

    return b.reduce("sum", (const(windows.line.wanted),), (const(windows.length),), weight, "total")


Pair = Callable[[Expr, Expr], tuple[Expr, Expr]]


def _shares(b: Builder, windows: Windows, count: int, extent: int, pair: Pair, dtype: DType) -> Value:
    """The normalised weights [count, extent]: `pair(k, place)` gives the input and result element of an entry."""
    totals = _totals(b, windows, dtype)

    def share(at: Index, k: Index) -> Expr:
        p, i = pair(at[0], at[1])
        i = op("min", op("max", i, 0), windows.line.wanted - 1)
        place = windows.begin.whole(i) + k[0]
        return op("where", op("eq", place, p), windows.weight(i, place, dtype) / totals.at((i,)), const(0, dtype))

    return b.reduce("sum", (const(count), const(extent)), (const(windows.length),), share, "share")


def _mean(b: Builder, x: Value, d: int, windows: Windows) -> Value:
    """Resize one dimension: the weighted mean over each window."""
    begin = windows.begin.whole

    def pair(k: Expr, i: Expr) -> tuple[Expr, Expr]:
        return begin(i) + k, i

    return weighted(b, x, d, _shares(b, windows, windows.length, windows.line.wanted, pair, x.compute), begin)


def _gathered(b: Builder, grad: Value, d: int, windows: Windows) -> Value:
    """The gradient of `_mean`."""
    last = replace(windows.end, offset=windows.end.offset - windows.end.unit)
    who = readers(last, [windows.read(i) for i in range(windows.line.wanted)])

    def pair(k: Expr, p: Expr) -> tuple[Expr, Expr]:
        return p, who.first(p) + k

    return weighted(b, grad, d, _shares(b, windows, who.count, windows.line.extent, pair, grad.compute), who.first)


def _resized(how: Filter) -> Callable[[Builder, Value, bool, Scales], Value]:
    def made(b: Builder, x: Value, align_corners: bool, scales: Scales) -> Value:
        if not x.dtype.is_float:
            raise b.refuse("antialiased resizing of integers")
        found = [_windows(b, line, how, align_corners) for line in lines(b, x.shape, b.out.shape, scales)]
        for d in by_cost([(w.line.extent, w.line.wanted) for w in found]):
            x = _mean(b, x, d + 2, found[d])
        return x

    return made


def _backward(how: Filter) -> Callable[[Builder, Value, bool, Scales], Value]:
    def made(b: Builder, grad: Value, align_corners: bool, scales: Scales) -> Value:
        found = [_windows(b, line, how, align_corners) for line in lines(b, b.out.shape, grad.shape, scales)]
        for d in by_cost([(w.line.wanted, w.line.extent) for w in found]):
            grad = _gathered(b, grad, d + 2, found[d])
        return grad

    return made


def _rules(name: str, how: Filter) -> dict[str, Rule]:
    sizes, options, scales = ["output_size"], ["align_corners"], each_scale(2)
    return {
        f"aten.{name}.vec": rule(_resized(how), "input", sizes, options, "scale_factors"),
        f"aten.{name}.default": rule(_resized(how), "self", sizes, options, *scales),
        f"aten.{name}_backward.default": rule(_backward(how), "grad_output", [*sizes, "input_size"], options, *scales),
    }


RULES: dict[str, Rule] = {
    **_rules("_upsample_bilinear2d_aa", LINEAR), **_rules("_upsample_bicubic2d_aa", CUBIC),
    **_rules("_upsample_lanczos2d_aa", LANCZOS),
}  # fmt: skip
