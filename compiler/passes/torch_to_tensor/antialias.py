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
    cost_order,
    fraction,
    readers,
    resized_lines,
    resizing_rule,
    scale_names,
    weighted_sum,
)


@dataclass(frozen=True)
class Filter:
    """Weights by distance in pixels of the smaller image; 0 from `reach` on."""

    reach: int
    weight: Callable[[Expr], Expr]


def _linear(distance: Expr) -> Expr:
    return op("max", const(1, distance.dtype) - distance, 0)


def _cubic(x: Expr) -> Expr:
    """Cubic convolution with a = -0.5."""
    near = (x * 1.5 - 2.5) * x * x + 1.0
    far = ((x * -0.5 + 2.5) * x - 4.0) * x + 2.0
    return op("where", op("lt", x, 1), near, op("where", op("lt", x, 2), far, const(0, x.dtype)))


def _lanczos(x: Expr) -> Expr:
    """sinc(x) * sinc(x / 3), using sin(3 a) = 3 s - 4 s^3."""
    angle = x * (math.pi / 3.0)
    sine = op("sin", angle)
    value = (3.0 - sine * sine * 4.0) * sine * sine / (angle * angle * 3.0)
    inside = op("where", op("lt", x, 3), value, const(0, x.dtype))
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
        spans = (
            self.end.rounded_down(const(i)) - self.begin.rounded_down(const(i)) for i in range(self.line.result_extent)
        )
        return max(map(static, spans), default=0)

    def input_range(self, i: int) -> range:
        begin, end = static(self.begin.rounded_down(const(i))), static(self.end.rounded_down(const(i)))
        return range(max(begin, 0), min(end, self.line.extent))

    def weight(self, i: Expr, p: Expr, dtype: DType) -> Expr:
        """The weight of input element p in result element i, before normalisation."""
        center = fraction(self.step, self.step / 2)
        distance = op("abs", (p * 2 + 1) * center.unit - center.numerator(i) * 2)
        unit = const(float(2 * center.unit * max(self.step, Fraction(1))), dtype)
        inside = both(
            op("ge", p, 0), op("lt", p, self.line.extent),
            op("ge", p, self.begin.rounded_down(i)), op("lt", p, self.end.rounded_down(i)),
        )  # fmt: skip
        return op("where", inside, self.how.weight(cast(distance, dtype) / unit), const(0, dtype))


def _windows(b: Builder, line: Line, window_filter: Filter, align_corners: bool) -> Windows:
    step = Fraction(1) if line.extent == line.result_extent else line.step
    if align_corners:
        step = Fraction(line.extent - 1, line.result_extent - 1) if line.result_extent > 1 else Fraction(0)
    reach, half = window_filter.reach * max(step, Fraction(1)), Fraction(1, 2)
    begin, end = fraction(step, step / 2 - reach + half), fraction(step, step / 2 + reach + half)
    windows = Windows(line, window_filter, begin, end, step)
    if not all(windows.input_range(i) for i in range(line.result_extent)):
        raise b.refuse("a scale by which some elements are made of none")
    return windows


def _totals(b: Builder, windows: Windows, dtype: DType) -> Value:
    """The sum of the weights of each window."""

    def weight(at: Index, k: Index) -> Expr:
        return windows.weight(at[0], windows.begin.rounded_down(at[0]) + k[0], dtype)

    return b.reduce("sum", (const(windows.line.result_extent),), (const(windows.length),), weight, "total")


Pair = Callable[[Expr, Expr], tuple[Expr, Expr]]


def _normalized_weights(b: Builder, windows: Windows, count: int, extent: int, pair: Pair, dtype: DType) -> Value:
    """The normalised weights [count, extent]: `pair(k, position)` gives the input and result element of an entry."""
    totals = _totals(b, windows, dtype)

    def term(at: Index, k: Index) -> Expr:
        p, i = pair(at[0], at[1])
        i = op("min", op("max", i, 0), windows.line.result_extent - 1)
        position = windows.begin.rounded_down(i) + k[0]
        return op("where", op("eq", position, p), windows.weight(i, position, dtype) / totals.at((i,)), const(0, dtype))

    return b.reduce("sum", (const(count), const(extent)), (const(windows.length),), term, "share")


def _resize_dim(b: Builder, x: Value, d: int, windows: Windows) -> Value:
    """Resize one dimension: the weighted mean over each window."""
    begin = windows.begin.rounded_down

    def pair(k: Expr, i: Expr) -> tuple[Expr, Expr]:
        return begin(i) + k, i

    return weighted_sum(
        b, x, d, _normalized_weights(b, windows, windows.length, windows.line.result_extent, pair, x.compute), begin
    )


def _resize_dim_backward(b: Builder, grad: Value, d: int, windows: Windows) -> Value:
    """The gradient of `_resize_dim`."""
    last = replace(windows.end, offset=windows.end.offset - windows.end.unit)
    window_readers = readers(last, [windows.input_range(i) for i in range(windows.line.result_extent)])

    def pair(k: Expr, p: Expr) -> tuple[Expr, Expr]:
        return p, window_readers.first(p) + k

    return weighted_sum(
        b,
        grad,
        d,
        _normalized_weights(b, windows, window_readers.count, windows.line.extent, pair, grad.compute),
        window_readers.first,
    )


def _resize(window_filter: Filter) -> Callable[[Builder, Value, bool, Scales], Value]:
    def rule(b: Builder, x: Value, align_corners: bool, scales: Scales) -> Value:
        if not x.dtype.is_float:
            raise b.refuse("antialiased resizing of integers")
        windows = [
            _windows(b, line, window_filter, align_corners) for line in resized_lines(b, x.shape, b.out.shape, scales)
        ]
        for d in cost_order([(w.line.extent, w.line.result_extent) for w in windows]):
            x = _resize_dim(b, x, d + 2, windows[d])
        return x

    return rule


def _backward(window_filter: Filter) -> Callable[[Builder, Value, bool, Scales], Value]:
    def rule(b: Builder, grad: Value, align_corners: bool, scales: Scales) -> Value:
        windows = [
            _windows(b, line, window_filter, align_corners)
            for line in resized_lines(b, b.out.shape, grad.shape, scales)
        ]
        for d in cost_order([(w.line.result_extent, w.line.extent) for w in windows]):
            grad = _resize_dim_backward(b, grad, d + 2, windows[d])
        return grad

    return rule


def _rules(name: str, window_filter: Filter) -> dict[str, Rule]:
    sizes, options, scales = ["output_size"], ["align_corners"], scale_names(2)
    return {
        f"aten.{name}.vec": resizing_rule(_resize(window_filter), "input", sizes, options, "scale_factors"),
        f"aten.{name}.default": resizing_rule(_resize(window_filter), "self", sizes, options, *scales),
        f"aten.{name}_backward.default": resizing_rule(
            _backward(window_filter), "grad_output", [*sizes, "input_size"], options, *scales
        ),
    }


RULES: dict[str, Rule] = {
    **_rules("_upsample_bilinear2d_aa", LINEAR), **_rules("_upsample_bicubic2d_aa", CUBIC),
    **_rules("_upsample_lanczos2d_aa", LANCZOS),
}  # fmt: skip
