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
from compiler.passes.torch_to_tensor.pool import Sizes, Windows, adaptive, averaged, divided, per_dim, shared
from compiler.passes.torch_to_tensor.positions import flat, ranges, within


def _covering(
    grad: Value, shape: Shape, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Windows:
    """For each position of the input, the windows that begin at most `kernel` before it."""
    lead = len(shape) - len(kernel)
    over = tuple(const(-(-k // s)) for k, s in zip(kernel, stride, strict=True))

    def place(at: Index, r: Index) -> Index:
        return (*at[:lead], *((i + p) // s - k for i, k, s, p in zip(at[lead:], r, stride, padding, strict=True)))

    def inside(at: Index, r: Index) -> Expr:
        known = ranges((*at, *r), (*shape, *over))
        every = zip(place(at, r)[lead:], at[lead:], grad.shape[lead:], kernel, stride, padding, strict=True)
        ends = ((within(q, n, known), op("gt", q * s - p + k, i)) for q, i, n, k, s, p in every)
        return all_of(*(c for pair in ends for c in pair))

    return Windows(shape, over, place, inside)


def _gathered(b: Builder, grad: Value, windows: Windows, value: Callable[[Index, Index], Expr]) -> Value:
    return windows.reduce(b, "sum", value, const(0, grad.compute), "gathered")


def _to_maxima(b: Builder, grad: Value, indices: Value, windows: Windows, count: int) -> Value:
    """The sum of the gradients of the windows whose maximum is at a position."""

    def given(at: Index, index: Index) -> Expr:
        here = flat(at[-count:], windows.shape[-count:])
        chosen = op("eq", cast(indices.at(index), i64), here)
        return op("where", chosen, grad.at(index), const(0, grad.compute))

    return _gathered(b, grad, windows, given)


def _max_pool_backward(count: int) -> Rule:
    def rule(
        b: Builder, grad_output: Value, self: Value, kernel_size: Sizes, stride: Sizes, padding: Sizes,
        dilation: Sizes, ceil_mode: bool, indices: Value,
    ) -> Value:  # fmt: skip
        del ceil_mode
        kernel = per_dim(kernel_size, count)
        step, margin = per_dim(stride, count) or kernel, per_dim(padding, count)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, per_dim(dilation, count), strict=True)]
        return _to_maxima(b, grad_output, indices, _covering(grad_output, self.shape, reach, step, margin), count)

    return rule


def _adaptive_max_pool_backward(count: int) -> Rule:
    def rule(b: Builder, grad_output: Value, self: Value, indices: Value) -> Value:
        return _to_maxima(b, grad_output, indices, adaptive(b, grad_output, self.shape, count), count)

    return rule


def _avg_pool_backward(count: int) -> Rule:
    def rule(
        b: Builder, grad_output: Value, self: Value, kernel_size: Sizes, stride: Sizes, padding: Sizes,
        ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
    ) -> Value:  # fmt: skip
        del ceil_mode
        kernel, margin = per_dim(kernel_size, count), per_dim(padding, count)
        step = per_dim(stride, count) or kernel

        def share(at: Index, index: Index) -> Expr:
            elements: Expr = const(divisor_override or 1)
            if divisor_override is None:
                elements = averaged(index, self.shape[-count:], kernel, step, margin, count_include_pad)
            return divided(grad_output.at(index), elements)

        return _gathered(b, grad_output, _covering(grad_output, self.shape, kernel, step, margin), share)

    return rule


def _adaptive_avg_pool_backward(count: int) -> Rule:
    """The windows that contain an element divide the result as the forward windows divide the input."""

    def rule(b: Builder, grad_output: Value, self: Value) -> Value:
        windows = adaptive(b, grad_output, self.shape, count)

        def share(at: Index, index: Index) -> Expr:
            own = shared(index[-count:], self.shape[-count:], grad_output.shape[-count:])
            return divided(grad_output.at(index), own)

        return _gathered(b, grad_output, windows, share)

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

        def place(at: Index, r: Index) -> Index:
            begins = (op("where", op("eq", i, 0), 0, i + low) for i, (low, _) in zip(at[lead:], sides, strict=True))
            return (*at[:lead], *(begin + k for begin, k in zip(begins, r, strict=True)))

        def inside(at: Index, r: Index) -> Expr:
            found: list[Expr] = []
            known = ranges((*at, *r), (*self.shape, *over))
            ends = zip(place(at, r)[lead:], at[lead:], sizes, sides, grad_output.shape[lead:], strict=True)
            for q, i, n, (low, high), extent in ends:
                end = op("where", op("eq", i, n - 1), const(n + low + high), i + (low + 1))
                found += [op("lt", q, end), within(q, extent, known)]
            return all_of(*found)

        windows = Windows(self.shape, tuple(over), place, inside)
        return _gathered(b, grad_output, windows, lambda at, index: grad_output.at(index))

    return rule


RULES: dict[str, Rule] = {
    **{f"aten.max_pool{k}d_with_indices_backward.default": _max_pool_backward(k) for k in (2, 3)},
    **{f"aten.adaptive_max_pool{k}d_backward.default": _adaptive_max_pool_backward(k) for k in (2, 3)},
    **{f"aten.avg_pool{k}d_backward.default": _avg_pool_backward(k) for k in (2, 3)},
    **{f"aten._adaptive_avg_pool{k}d_backward.default": _adaptive_avg_pool_backward(k) for k in (2, 3)},
    **{f"aten.replication_pad{k}d_backward.default": _replication_pad_backward(k) for k in (1, 2, 3)},
}  # fmt: skip
