"""Pooling: reductions over a window around each element of the result, without positions outside of the input.

The declared shape accounts for `ceil_mode`. Spatial dimensions are the last ones; leading ones (channels, and perhaps a
batch) are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, cast, const, identity, op, select, static
from compiler.ir.expr import both as all_of
from compiler.ir.index import simplify
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, rounded
from compiler.passes.torch_to_tensor.positions import flat, is_empty, ranges, within

Sizes = int | Sequence[int]


@dataclass(frozen=True)
class Windows:
    """For each element `at` of `shape`, the positions `place(at, r)` for every `r` of `over` where `inside` holds."""

    shape: Shape
    over: Shape
    place: Callable[[Index, Index], Index]
    inside: Callable[[Index, Index], Expr]

    def reduce(self, b: Builder, how: str, value: Callable[[Index, Index], Expr], neutral: Const, hint: str) -> Value:
        """Reduce `value(at, position)` over each window, with `neutral` for positions outside."""

        def element(at: Index, r: Index) -> Expr:
            known = ranges((*at, *r), (*self.shape, *self.over))
            index, inside = simplify(self.place(at, r), known), simplify(self.inside(at, r), known)
            return select(inside, value(at, index), neutral)

        return b.reduce(how, self.shape, self.over, element, hint)


def per_dim(given: Sizes, rank: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    sizes = (given,) if isinstance(given, int) else tuple(given)
    return sizes * rank if len(sizes) == 1 else sizes


def sliding(
    x: Value, shape: Shape, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Windows:  # fmt: skip
    """Windows of constant size that move by a stride."""
    lead = x.rank - len(kernel)
    over = tuple(const(k) for k in kernel)

    def place(at: Index, r: Index) -> Index:
        moving = zip(at[lead:], r, stride, dilation, padding, strict=True)
        return (*at[:lead], *(i * s + k * d - p for i, k, s, d, p in moving))

    def inside(at: Index, r: Index) -> Expr:
        known = ranges((*at, *r), (*shape, *over))
        positions = place(at, r)[lead:]
        return all_of(*(within(p, n, known) for p, n in zip(positions, x.shape[lead:], strict=True)))

    return Windows(shape, over, place, inside)


def adaptive(b: Builder, x: Value, shape: Shape, count: int) -> Windows:
    """Windows that divide the input: element i of O covers positions i * N // O up to ceil((i + 1) * N / O)."""
    lead = x.rank - count
    pairs = list(zip(x.shape[lead:], shape[lead:], strict=True))
    if any(n is const(0) for n, _ in pairs) and not is_empty(shape):
        raise b.refuse("pooling of an input without elements")

    def place(at: Index, r: Index) -> Index:
        return (*at[:lead], *(_start(i, n, o) + k for i, k, (n, o) in zip(at[lead:], r, pairs, strict=True)))

    def inside(at: Index, r: Index) -> Expr:
        every = zip(place(at, r)[lead:], at[lead:], pairs, strict=True)
        return all_of(*(op("lt", p, _end(i, n, o)) for p, i, (n, o) in every if _each(n, o) is None))

    return Windows(shape, tuple(_longest(n, o) for n, o in pairs), place, inside)


def _start(i: Expr, extent: Expr, outputs: Expr) -> Expr:
    return i * extent // outputs if outputs is not const(0) else i  # any value is valid for an empty result


def _end(i: Expr, extent: Expr, outputs: Expr) -> Expr:
    return (i * extent + (extent + outputs - 1)) // outputs if outputs is not const(0) else i


def _each(extent: Expr, outputs: Expr) -> Expr | None:
    """The number of elements of each window, if all are known to have the same; else None."""
    if isinstance(extent, Const) and isinstance(outputs, Const):
        n, o = static(extent), static(outputs) or 1
        return const(n // o) if n % o == 0 else None
    return extent if outputs is const(1) else None


def _longest(extent: Expr, outputs: Expr) -> Expr:
    each = _each(extent, outputs)
    if each is not None:
        return each
    if isinstance(extent, Const) and isinstance(outputs, Const):
        ends = ((const(i), extent, outputs) for i in range(static(outputs)))
        return const(max(static(_end(*e)) - static(_start(*e)) for e in ends))
    return (extent + outputs - 1) // outputs + 1


# Maxima ---------------------------------------------------------------------------------------------------------------


def greatest(b: Builder, x: Value, windows: Windows, count: int) -> tuple[Value, Value]:
    """The maxima and their row-major spatial indices: the first of equal elements, the last of NaNs."""
    neutral = identity("max", x.compute)
    best = windows.reduce(b, "max", lambda at, index: x.at(index), neutral, "max")

    def place(at: Index, index: Index) -> Expr:
        here = x.rounded_at(index)  # rounding decides which elements are equal
        position = flat(index[-count:], x.shape[-count:])
        found = op("where", op("eq", here, rounded(best.at(at), x.dtype)), position, nowhere)
        return op("where", op("isnan", here), -1 - position, found) if x.dtype.is_float else found

    nowhere = identity("min", i64)
    first = windows.reduce(b, "min", place, nowhere, "place")
    index = b.map(first.shape, lambda at: op("max", first.at(at), -1 - first.at(at)), "index")
    return best, index


def _max_pool(count: int) -> Callable[..., tuple[Value, Value]]:
    def rule(
        b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:  # fmt: skip
        del ceil_mode
        kernel = per_dim(kernel_size, count)
        step = per_dim(stride, count) or kernel
        shape = b.out.shape
        windows = sliding(self, shape, kernel, step, per_dim(padding, count), per_dim(dilation, count))
        return greatest(b, self, windows, count)

    return rule


def _adaptive_max_pool(count: int) -> Rule:
    def rule(b: Builder, self: Value, output_size: Sizes) -> tuple[Value, Value]:
        del output_size
        return greatest(b, self, adaptive(b, self, b.out.shape, count), count)

    return rule


def _first(rule: Callable[..., tuple[Value, Value]]) -> Rule:
    """The maxima without their indices."""

    def only(
        b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Value:  # fmt: skip
        return rule(b, self, kernel_size, stride, padding, dilation, ceil_mode)[0]

    return only


# Means ----------------------------------------------------------------------------------------------------------------


def divided(total: Expr, count: Expr) -> Expr:
    return op("div" if total.dtype.is_float else "truncdiv", total, cast(count, total.dtype))


def _avg_pool(count: int) -> Rule:
    def rule(
        b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        """A window that extends beyond the padding counts only the elements before its end."""
        del ceil_mode
        kernel, margin = per_dim(kernel_size, count), per_dim(padding, count)
        step = per_dim(stride, count) or kernel
        windows = sliding(self, b.out.shape, kernel, step, margin, (1,) * count)
        total = windows.reduce(b, "sum", lambda at, index: self.at(index), const(0, self.compute), "total")
        extents = self.shape[self.rank - count :]

        def elements(at: Index) -> Expr:
            if divisor_override is not None:
                return const(divisor_override)
            return simplify(averaged(at, extents, kernel, step, margin, count_include_pad), ranges(at, b.out.shape))

        return b.map(b.out.shape, lambda at: divided(total.at(at), elements(at)))

    return rule


def averaged(
    at: Index, extents: Shape, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], pads: bool
) -> Expr:
    """The number of elements that a window averages; with `pads`, padding counts."""
    out: Expr = const(1)
    for i, k, s, p, n in zip(at[-len(kernel) :], kernel, stride, padding, extents, strict=True):
        start = i * s - p
        end = op("min", start + k, n + p)
        if not pads:
            start, end = op("max", start, 0), op("min", end, n)
        out = out * (end - start)
    return out


def _adaptive_avg_pool(count: int) -> Rule:
    def rule(b: Builder, self: Value, output_size: Sizes) -> Value:
        del output_size
        shape, lead = b.out.shape, self.rank - count
        windows = adaptive(b, self, shape, count)
        total = windows.reduce(b, "sum", lambda at, index: self.at(index), const(0, self.compute), "total")
        return b.map(shape, lambda at: divided(total.at(at), shared(at[lead:], self.shape[lead:], shape[lead:])))

    return rule


def shared(at: Index, extents: Shape, outputs: Shape) -> Expr:
    """The number of elements of windows that divide an input."""
    out: Expr = const(1)
    for i, n, o in zip(at, extents, outputs, strict=True):
        each = _each(n, o)
        out = out * (each if each is not None else _end(i, n, o) - _start(i, n, o))
    return out


def _average_1d(
    b: Builder, self: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:  # fmt: skip
    made = _avg_pool(1)(b, self, kernel_size, stride, padding, ceil_mode, count_include_pad)
    assert isinstance(made, Value), "an average has one result"
    return made


RULES: dict[str, Rule] = {
    "aten.avg_pool1d.default": _average_1d,
    **{f"aten.avg_pool{k}d.default": _avg_pool(k) for k in (2, 3)},
    **{f"aten.max_pool{k}d.default": _first(_max_pool(k)) for k in (1, 2, 3)},
    **{f"aten.max_pool{k}d_with_indices.default": _max_pool(k) for k in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{k}d.default": _adaptive_avg_pool(k) for k in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{k}d.default": _adaptive_avg_pool(k) for k in (2, 3)},
    **{f"aten.adaptive_max_pool{k}d.default": _adaptive_max_pool(k) for k in (1, 2, 3)},
}  # fmt: skip
