"""Pooling: reductions over a window around each element of the result, without positions outside of the input.

The declared shape accounts for `ceil_mode`. Spatial dimensions are the last ones; leading ones (channels, and perhaps a
batch) are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.ir.dtype import i32, i64
from compiler.ir.expr import Const, Expr, cast, const, identity, op, select, static
from compiler.ir.expr import both as all_of
from compiler.ir.index import simplify
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, rounded
from compiler.passes.torch_to_tensor.positions import flat_index, in_bounds, is_empty, ranges

Sizes = int | Sequence[int]
MOST_PLACES = 1 << 30  # that are numbered by 32 bits


@dataclass(frozen=True)
class Windows:
    """For each element `at` of `shape`, `position(at, r)` for every `r` of `over` where `inside` holds."""

    shape: Shape
    over: Shape
    position: Callable[[Index, Index], Index]
    inside: Callable[[Index, Index], Expr]

    def reduce(
        self, b: Builder, reduction: str, value: Callable[[Index, Index], Expr], neutral: Const, hint: str
    ) -> Value:
        """Reduce `value(at, position)` over each window, with `neutral` for positions outside."""

        def element(at: Index, r: Index) -> Expr:
            var_ranges = ranges((*at, *r), (*self.shape, *self.over))
            index, inside = simplify(self.position(at, r), var_ranges), simplify(self.inside(at, r), var_ranges)
            return select(inside, value(at, index), neutral)

        return b.reduce(reduction, self.shape, self.over, element, hint)


def per_dim(value: Sizes, rank: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes * rank if len(sizes) == 1 else sizes


def sliding_windows(
    x: Value, shape: Shape, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Windows:  # fmt: skip
    """Windows of constant size that move by a stride."""
    lead = x.rank - len(kernel)
    over = tuple(const(k) for k in kernel)

    def position(at: Index, r: Index) -> Index:
        moving = zip(at[lead:], r, stride, dilation, padding, strict=True)
        return (*at[:lead], *(i * s + k * d - p for i, k, s, d, p in moving))

    def inside(at: Index, r: Index) -> Expr:
        var_ranges = ranges((*at, *r), (*shape, *over))
        positions = position(at, r)[lead:]
        return all_of(*(in_bounds(p, n, var_ranges) for p, n in zip(positions, x.shape[lead:], strict=True)))

    return Windows(shape, over, position, inside)


def adaptive_windows(b: Builder, x: Value, shape: Shape, count: int) -> Windows:
    """Windows that divide the input: element i of O covers positions i * N // O up to ceil((i + 1) * N / O)."""
    lead = x.rank - count
    pairs = list(zip(x.shape[lead:], shape[lead:], strict=True))
    if any(n is const(0) for n, _ in pairs) and not is_empty(shape):
        raise b.refuse("pooling of an input without elements")

    def position(at: Index, r: Index) -> Index:
        return (*at[:lead], *(_window_start(i, n, o) + k for i, k, (n, o) in zip(at[lead:], r, pairs, strict=True)))

    def inside(at: Index, r: Index) -> Expr:
        windows = zip(position(at, r)[lead:], at[lead:], pairs, strict=True)
        return all_of(*(op("lt", p, _window_end(i, n, o)) for p, i, (n, o) in windows if _uniform_length(n, o) is None))

    return Windows(shape, tuple(_longest_window(n, o) for n, o in pairs), position, inside)


def _window_start(i: Expr, extent: Expr, outputs: Expr) -> Expr:
    return i * extent // outputs if outputs is not const(0) else i  # any value is valid for an empty result


def _window_end(i: Expr, extent: Expr, outputs: Expr) -> Expr:
    return (i * extent + (extent + outputs - 1)) // outputs if outputs is not const(0) else i


def _uniform_length(extent: Expr, output_count: Expr) -> Expr | None:
    """The number of elements of each window, if all are known to have the same; else None."""
    if isinstance(extent, Const) and isinstance(output_count, Const):
        n, o = static(extent), static(output_count) or 1
        return const(n // o) if n % o == 0 else None
    return extent if output_count is const(1) else None


def _longest_window(extent: Expr, outputs: Expr) -> Expr:
    length = _uniform_length(extent, outputs)
    if length is not None:
        return length
    if isinstance(extent, Const) and isinstance(outputs, Const):
        ends = ((const(i), extent, outputs) for i in range(static(outputs)))
        return const(max(static(_window_end(*e)) - static(_window_start(*e)) for e in ends))
    return (extent + outputs - 1) // outputs + 1


# Maxima ---------------------------------------------------------------------------------------------------------------


def maxima_with_indices(b: Builder, x: Value, windows: Windows, count: int) -> tuple[Value, Value]:
    """The maxima and their row-major spatial indices: the first of equal elements, the last of NaNs."""
    neutral = identity("max", x.compute)
    best = windows.reduce(b, "max", lambda at, index: x.at(index), neutral, "max")
    places = x.shape[-count:]
    kind = i32 if all(isinstance(n, Const) for n in places) and math.prod(map(static, places)) <= MOST_PLACES else i64

    def position_of(at: Index, index: Index) -> Expr:
        x_here = x.rounded_at(index)  # rounding decides which elements are equal
        position = cast(flat_index(index[-count:], places), kind)
        candidate = op("where", op("eq", x_here, rounded(best.at(at), x.dtype)), position, no_position)
        return op("where", op("isnan", x_here), -1 - position, candidate) if x.dtype.is_float else candidate

    no_position = identity("min", kind)
    first = windows.reduce(b, "min", position_of, no_position, "place")
    index = b.map(first.shape, lambda at: cast(op("max", first.at(at), -1 - first.at(at)), i64), "index")
    return best, index


def _max_pool(count: int) -> Callable[..., tuple[Value, Value]]:
    def rule(
        b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:  # fmt: skip
        del ceil_mode
        kernel = per_dim(kernel_size, count)
        strides = per_dim(stride, count) or kernel
        shape = b.out.shape
        windows = sliding_windows(self, shape, kernel, strides, per_dim(padding, count), per_dim(dilation, count))
        return maxima_with_indices(b, self, windows, count)

    return rule


def _adaptive_max_pool(count: int) -> Rule:
    def rule(b: Builder, self: Value, output_size: Sizes) -> tuple[Value, Value]:
        del output_size
        return maxima_with_indices(b, self, adaptive_windows(b, self, b.out.shape, count), count)

    return rule


def _without_indices(rule: Callable[..., tuple[Value, Value]]) -> Rule:
    """The maxima without their indices."""

    def maxima(
        b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Value:  # fmt: skip
        return rule(b, self, kernel_size, stride, padding, dilation, ceil_mode)[0]

    return maxima


# Means ----------------------------------------------------------------------------------------------------------------


def divide_by_count(total: Expr, count: Expr) -> Expr:
    return op("div" if total.dtype.is_float else "truncdiv", total, cast(count, total.dtype))


def _avg_pool(count: int) -> Rule:
    def rule(
        b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        """A window that extends beyond the padding counts only the elements before its end."""
        del ceil_mode
        kernel, paddings = per_dim(kernel_size, count), per_dim(padding, count)
        strides = per_dim(stride, count) or kernel
        windows = sliding_windows(self, b.out.shape, kernel, strides, paddings, (1,) * count)
        total = windows.reduce(b, "sum", lambda at, index: self.at(index), const(0, self.compute), "total")
        extents = self.shape[self.rank - count :]

        def element_count(at: Index) -> Expr:
            if divisor_override is not None:
                return const(divisor_override)
            return simplify(
                averaged_count(at, extents, kernel, strides, paddings, count_include_pad), ranges(at, b.out.shape)
            )

        return b.map(b.out.shape, lambda at: divide_by_count(total.at(at), element_count(at)))

    return rule


def averaged_count(
    at: Index,
    extents: Shape,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    counts_padding: bool,
) -> Expr:
    """The number of elements that a window averages; with `counts_padding`, padding counts."""
    count: Expr = const(1)
    for i, k, s, p, n in zip(at[-len(kernel) :], kernel, stride, padding, extents, strict=True):
        start = i * s - p
        end = op("min", start + k, n + p)
        if not counts_padding:
            start, end = op("max", start, 0), op("min", end, n)
        count = count * (end - start)
    return count


def _adaptive_avg_pool(count: int) -> Rule:
    def rule(b: Builder, self: Value, output_size: Sizes) -> Value:
        del output_size
        shape, lead = b.out.shape, self.rank - count
        windows = adaptive_windows(b, self, shape, count)
        total = windows.reduce(b, "sum", lambda at, index: self.at(index), const(0, self.compute), "total")
        return b.map(
            shape, lambda at: divide_by_count(total.at(at), divided_count(at[lead:], self.shape[lead:], shape[lead:]))
        )

    return rule


def divided_count(at: Index, extents: Shape, outputs: Shape) -> Expr:
    """The number of elements of windows that divide an input."""
    count: Expr = const(1)
    for i, n, o in zip(at, extents, outputs, strict=True):
        length = _uniform_length(n, o)
        count = count * (length if length is not None else _window_end(i, n, o) - _window_start(i, n, o))
    return count


def _average_1d(
    b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:  # fmt: skip
    average = _avg_pool(1)(b, self, kernel_size, stride, padding, ceil_mode, count_include_pad)
    assert isinstance(average, Value), "an average has one result"
    return average


RULES: dict[str, Rule] = {
    "aten.avg_pool1d.default": _average_1d,
    **{f"aten.avg_pool{k}d.default": _avg_pool(k) for k in (2, 3)},
    **{f"aten.max_pool{k}d.default": _without_indices(_max_pool(k)) for k in (1, 2, 3)},
    **{f"aten.max_pool{k}d_with_indices.default": _max_pool(k) for k in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{k}d.default": _adaptive_avg_pool(k) for k in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{k}d.default": _adaptive_avg_pool(k) for k in (2, 3)},
    **{f"aten.adaptive_max_pool{k}d.default": _adaptive_max_pool(k) for k in (1, 2, 3)},
}  # fmt: skip
