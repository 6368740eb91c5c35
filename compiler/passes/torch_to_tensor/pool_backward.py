"""Gradients of pooling and of padding: each element of the input gathers from the windows that contain it.

A gather, unlike a scatter, sums in the same order in every run. The windows that contain a position are enumerated
backwards from the last one that begins at or before it. The gradient of a maximum goes to the position of its index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, cast, const, op, static
from compiler.ir.expr import both as all_of
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value
from compiler.passes.torch_to_tensor.pool import (
    Sizes,
    Windows,
    adaptive_windows,
    averaged_count,
    divide_by_count,
    divided_count,
    per_dim,
)
from compiler.passes.torch_to_tensor.positions import flat_index, in_bounds, ranges


def _covering_windows(
    grad: Value, shape: Shape, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Windows:
    """For each position of the input, the windows that begin at most `kernel` before it."""
    lead = len(shape) - len(kernel)
    over = tuple(const(-(-k // s)) for k, s in zip(kernel, stride, strict=True))

    def position(at: Index, r: Index) -> Index:
        return (*at[:lead], *((i + p) // s - k for i, k, s, p in zip(at[lead:], r, stride, padding, strict=True)))

    def inside(at: Index, r: Index) -> Expr:
        var_ranges = ranges((*at, *r), (*shape, *over))
        windows = zip(position(at, r)[lead:], at[lead:], grad.shape[lead:], kernel, stride, padding, strict=True)
        ends = ((in_bounds(q, n, var_ranges), op("gt", q * s - p + k, i)) for q, i, n, k, s, p in windows)
        return all_of(*(c for pair in ends for c in pair))

    return Windows(shape, over, position, inside)


def _sum_over_windows(b: Builder, grad: Value, windows: Windows, value: Callable[[Index, Index], Expr]) -> Value:
    return windows.reduce(b, "sum", value, const(0, grad.compute), "gathered")


def _sum_at_maxima(b: Builder, grad: Value, indices: Value, windows: Windows, count: int) -> Value:
    """The sum of the gradients of the windows whose maximum is at a position."""

    def grad_at_maximum(at: Index, index: Index) -> Expr:
        position = flat_index(at[-count:], windows.shape[-count:])
        is_maximum = op("eq", cast(indices.at(index), i64), position)
        return op("where", is_maximum, grad.at(index), const(0, grad.compute))

    return _sum_over_windows(b, grad, windows, grad_at_maximum)


def _max_pool_backward(count: int) -> Rule:
    def rule(
        b: Builder, grad_output: Value, self: Value, kernel_size: Sizes, stride: Sizes, padding: Sizes,
        dilation: Sizes, ceil_mode: bool, indices: Value,
    ) -> Value:  # fmt: skip
        del ceil_mode
        kernel = per_dim(kernel_size, count)
        strides, paddings = per_dim(stride, count) or kernel, per_dim(padding, count)
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, per_dim(dilation, count), strict=True)]
        return _sum_at_maxima(
            b, grad_output, indices, _covering_windows(grad_output, self.shape, extents, strides, paddings), count
        )

    return rule


def _adaptive_max_pool_backward(count: int) -> Rule:
    def rule(b: Builder, grad_output: Value, self: Value, indices: Value) -> Value:
        return _sum_at_maxima(b, grad_output, indices, adaptive_windows(b, grad_output, self.shape, count), count)

    return rule


def _avg_pool_backward(count: int) -> Rule:
    def rule(
        b: Builder, grad_output: Value, self: Value, kernel_size: Sizes, stride: Sizes, padding: Sizes,
        ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
    ) -> Value:  # fmt: skip
        del ceil_mode
        kernel, paddings = per_dim(kernel_size, count), per_dim(padding, count)
        strides = per_dim(stride, count) or kernel

        def share(at: Index, index: Index) -> Expr:
            element_count: Expr = const(divisor_override or 1)
            if divisor_override is None:
                element_count = averaged_count(index, self.shape[-count:], kernel, strides, paddings, count_include_pad)
            return divide_by_count(grad_output.at(index), element_count)

        return _sum_over_windows(
            b, grad_output, _covering_windows(grad_output, self.shape, kernel, strides, paddings), share
        )

    return rule


def _adaptive_avg_pool_backward(count: int) -> Rule:
    """The windows that contain an element divide the result as the forward windows divide the input."""

    def rule(b: Builder, grad_output: Value, self: Value) -> Value:
        windows = adaptive_windows(b, grad_output, self.shape, count)

        def share(at: Index, index: Index) -> Expr:
            element_count = divided_count(index[-count:], self.shape[-count:], grad_output.shape[-count:])
            return divide_by_count(grad_output.at(index), element_count)

        return _sum_over_windows(b, grad_output, windows, share)

    return rule


def _replication_pad_backward(count: int) -> Rule:
    """An element at an edge also receives the gradients of its copies beyond the edge."""

    def rule(b: Builder, grad_output: Value, self: Value, padding: Sequence[int]) -> Value:
        lead = self.rank - count
        sizes = [static(n, "a padded size") for n in self.shape[lead:]]
        sides = [(padding[2 * d], padding[2 * d + 1]) for d in reversed(range(count))]
        over: list[Const] = []
        for n, (low, high) in zip(sizes, sides, strict=True):
            over.append(const(1 + max(0, *((low + high,) if n == 1 else (low, high)))))

        def position(at: Index, r: Index) -> Index:
            begins = (op("where", op("eq", i, 0), 0, i + low) for i, (low, _) in zip(at[lead:], sides, strict=True))
            return (*at[:lead], *(begin + k for begin, k in zip(begins, r, strict=True)))

        def inside(at: Index, r: Index) -> Expr:
            conditions: list[Expr] = []
            var_ranges = ranges((*at, *r), (*self.shape, *over))
            ends = zip(position(at, r)[lead:], at[lead:], sizes, sides, grad_output.shape[lead:], strict=True)
            for q, i, n, (low, high), extent in ends:
                end = op("where", op("eq", i, n - 1), const(n + low + high), i + (low + 1))
                conditions += [op("lt", q, end), in_bounds(q, extent, var_ranges)]
            return all_of(*conditions)

        windows = Windows(self.shape, tuple(over), position, inside)
        return _sum_over_windows(b, grad_output, windows, lambda at, index: grad_output.at(index))

    return rule


RULES: dict[str, Rule] = {
    **{f"aten.max_pool{k}d_with_indices_backward.default": _max_pool_backward(k) for k in (2, 3)},
    **{f"aten.adaptive_max_pool{k}d_backward.default": _adaptive_max_pool_backward(k) for k in (2, 3)},
    **{f"aten.avg_pool{k}d_backward.default": _avg_pool_backward(k) for k in (2, 3)},
    **{f"aten._adaptive_avg_pool{k}d_backward.default": _adaptive_avg_pool_backward(k) for k in (2, 3)},
    **{f"aten.replication_pad{k}d_backward.default": _replication_pad_backward(k) for k in (1, 2, 3)},
}  # fmt: skip
