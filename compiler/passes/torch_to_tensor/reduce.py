"""Reductions over some or all dimensions: sums, products, extremes with indices, any and all, variances and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, boolean, i64
from compiler.ir.expr import Const, Expr, cast, const, op, static
from compiler.ir.tensor import numel
from compiler.passes.torch_to_tensor.builder import (
    Builder,
    Index,
    Rule,
    Shape,
    Value,
    converted_at,
    dims,
    drop_dims,
    merge,
    with_unit_dims,
)
from compiler.passes.torch_to_tensor.positions import NoElement, is_empty

Dims = int | Sequence[int] | None
Element = Callable[[Index], Expr]


def reduce_dims(
    b: Builder,
    reduction: str,
    shape: Shape,
    axes: Sequence[int],
    keepdim: bool,
    element: Element,
    hint: str = "reduced",
) -> Value:
    """Reduce dimensions `axes` of an index space of `shape`; they stay with size 1 if `keepdim`."""
    extents = tuple(shape[d] for d in axes)
    if keepdim:
        return b.reduce(
            reduction, with_unit_dims(shape, axes), extents, lambda at, r: element(_replace_dims(at, r, axes)), hint
        )
    return b.reduce(reduction, drop_dims(shape, axes), extents, lambda at, r: element(merge(at, r, axes)), hint)


def _replace_dims(at: Index, r: Index, axes: Sequence[int]) -> Index:
    """The index with its dimensions `axes` replaced."""
    inner = dict(zip(axes, r, strict=True))
    return tuple(inner.get(d, i) for d, i in enumerate(at))


def reduced_index(at: Index, axes: Sequence[int], keepdim: bool) -> Index:
    """The index into a reduced value for an index of the original shape."""
    return _replace_dims(at, (const(0, i64),) * len(axes), axes) if keepdim else drop_dims(at, axes)


def convert_elements(x: Value, dtype: DType) -> Element:
    """Elements rounded to `dtype`, as an explicit `dtype=` demands; unchanged if it is their own."""
    if dtype is x.dtype:
        return x.at
    return lambda at: converted_at(x, at, dtype)


def _reduction_rule(reduction: str) -> Callable[..., Value]:
    def rule(b: Builder, self: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
        axes = dims(b, dim, self.rank)
        element_type = boolean if reduction in ("and", "or") else b.out.dtype if dtype is None else dtype
        reduced = reduce_dims(b, reduction, self.shape, axes, keepdim, convert_elements(self, element_type))
        if reduction in ("and", "or") and b.out.dtype is not boolean:
            return b.map(reduced.shape, lambda at: cast(reduced.at(at), b.out.dtype))
        return reduced

    return rule


sum_, prod, amax, amin, all_, any_ = map(_reduction_rule, ("sum", "prod", "max", "min", "and", "or"))


def over_all_dims(rule: Callable[..., Value]) -> Rule:
    """The overload that reduces all dimensions and has no `dim`."""

    def without_dtype(b: Builder, self: Value) -> Value:
        if rule in (amax, amin):
            _require_elements(self.shape)
        return rule(b, self)

    def with_dtype(b: Builder, self: Value, dtype: DType | None = None) -> Value:
        return rule(b, self, dtype=dtype)

    return with_dtype if rule in (sum_, prod, mean) else without_dtype


def one_dim(b: Builder, self: Value, dim: int, keepdim: bool = False, dtype: DType | None = None) -> Value:
    return prod(b, self, dim, keepdim, dtype)


def mean(b: Builder, self: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    axes = dims(b, dim, self.rank)
    total = reduce_dims(b, "sum", self.shape, axes, keepdim, convert_elements(self, dtype or self.dtype), "total")
    count = cast(numel(tuple(self.shape[d] for d in axes)), total.compute)
    return b.map(total.shape, lambda at: total.at(at) / count)


def _require_elements(extents: Shape) -> None:
    if is_empty(extents):
        raise NoElement("there is no extreme of no elements")


def _extreme_with_index(
    b: Builder, reduction: str, self: Value, axes: Sequence[int], keepdim: bool
) -> tuple[Value, Value]:
    """The extreme, and the least index of it or of NaN, in the dimensions `axes` flattened.

    Elements are as torch would have stored them, since rounding decides which are equal.
    """
    _require_elements(tuple(self.shape[d] for d in axes))
    best = reduce_dims(b, reduction, self.shape, axes, keepdim, self.rounded_at, reduction)
    count = numel(tuple(self.shape[d] for d in axes))

    def position_at(at: Index) -> Expr:
        position: Expr = const(0, i64)
        for d in axes:
            position = position * self.shape[d] + at[d]
        value = self.rounded_at(at)
        is_extreme = op("eq", value, best.at(reduced_index(at, axes, keepdim)))
        if self.dtype.is_float:
            is_extreme = op("or", is_extreme, op("isnan", value))
        return op("where", is_extreme, position, count)

    return best, reduce_dims(b, "min", self.shape, axes, keepdim, position_at, "index")


def _arg_rule(reduction: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if self.dtype is boolean:
            raise b.refuse("torch has no place of an extreme of truth values")
        return _extreme_with_index(b, reduction, self, dims(b, dim, self.rank), keepdim)[1]

    return rule


def _extreme_rule(reduction: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        return _extreme_with_index(b, reduction, self, dims(b, dim, self.rank), keepdim)

    return rule


# Moments --------------------------------------------------------------------------------------------------------------


def moments(
    b: Builder, shape: Shape, axes: Sequence[int], keepdim: bool, element: Element, correction: float = 0
) -> tuple[Value, Value]:
    """Mean and variance in two passes, so that a large mean does not cancel the variance."""
    count = numel(tuple(shape[d] for d in axes))
    total = reduce_dims(b, "sum", shape, axes, keepdim, element, "total")
    mean_value = b.map(total.shape, lambda at: total.at(at) / cast(count, total.compute), "mean")

    def square(at: Index) -> Expr:
        deviation = element(at) - mean_value.at(reduced_index(at, axes, keepdim))
        return deviation * deviation

    squares = reduce_dims(b, "sum", shape, axes, keepdim, square, "squares")
    degrees = _degrees_of_freedom(count, correction, total.compute)
    variance = b.map(total.shape, lambda at: squares.at(at) / degrees, "variance")
    return mean_value, variance


def _degrees_of_freedom(count: Expr, correction: float, dtype: DType) -> Expr:
    """The degrees of freedom that a variance is divided by, never below 0."""
    if isinstance(count, Const) or correction != int(correction):
        return const(max(static(count, "the number of elements of a variance") - correction, 0), dtype)
    return cast(op("max", count - int(correction), 0), dtype)


def _without_infinities(b: Builder, x: Value) -> Value:
    """Replace infinities by NaN."""

    def element(at: Index) -> Expr:
        value = x.at(at)
        return op("where", op("eq", op("abs", value), math.inf), value - value, value)

    return b.map(x.shape, element, "center")


def _variance(root: bool, with_mean: bool) -> tuple[Rule, Rule, Rule]:
    """The overloads `correction`, `dim` and `default`."""

    def correction_rule(
        b: Builder, self: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False
    ) -> Value | tuple[Value, Value]:
        offset = 1 if correction is None else correction
        center, result = moments(b, self.shape, dims(b, dim, self.rank), keepdim, self.at, offset)
        if with_mean:  # torch computes both in one pass, in which an infinity makes both NaN
            center = _without_infinities(b, center)
        if root:
            variance = result
            result = b.map(variance.shape, lambda at: op("sqrt", variance.at(at)), "deviation")
        return (result, center) if with_mean else result

    def dim_rule(
        b: Builder, self: Value, dim: Dims, unbiased: bool = True, keepdim: bool = False
    ) -> Value | tuple[Value, Value]:
        return correction_rule(b, self, dim, int(unbiased), keepdim)

    def default_rule(b: Builder, self: Value, unbiased: bool = True) -> Value | tuple[Value, Value]:
        return correction_rule(b, self, None, int(unbiased))

    return correction_rule, dim_rule, default_rule


# Norms ----------------------------------------------------------------------------------------------------------------


def vector_norm(
    b: Builder, self: Value, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Value:
    axes = dims(b, dim, self.rank)
    element = convert_elements(self, dtype or self.dtype)

    def magnitude(at: Index) -> Expr:
        return op("abs", element(at))

    def reduce_by(reduction: str, value: Element, hint: str = "reduced") -> Value:
        return reduce_dims(b, reduction, self.shape, axes, keepdim, value, hint)

    if math.isinf(ord):
        return reduce_by("max" if ord > 0 else "min", magnitude)
    match ord:
        case 0:
            return reduce_by("sum", lambda at: cast(op("ne", element(at), 0), dt.compute(b.out.dtype)))
        case 1:
            return reduce_by("sum", magnitude)
        case 2:
            squares = reduce_by("sum", lambda at: element(at) * element(at), "squares")
            return b.map(squares.shape, lambda at: op("sqrt", squares.at(at)))
    powers = reduce_by("sum", lambda at: op("pow", magnitude(at), float(ord)), "powers")
    return b.map(powers.shape, lambda at: op("pow", powers.at(at), 1 / ord))


def logsumexp(b: Builder, self: Value, dim: Dims, keepdim: bool = False) -> Value:
    """Shifted by the maximum if that is finite, so that an infinite maximum is the result."""
    axes = dims(b, dim, self.rank)
    element = convert_elements(self, b.out.dtype)
    best = reduce_dims(b, "max", self.shape, axes, keepdim, element, "max")

    def shift(at: Index) -> Expr:
        row_max = best.at(at)
        return op("where", op("eq", op("abs", row_max), math.inf), const(0, row_max.dtype), row_max)

    total = reduce_dims(
        b, "sum", self.shape, axes, keepdim,
        lambda at: op("exp", element(at) - shift(reduced_index(at, axes, keepdim))), "total",
    )  # fmt: skip
    return b.map(total.shape, lambda at: op("log", total.at(at)) + shift(at))


_VARIANCES = {
    f"aten.{name}.{overload}": rule
    for name, root, with_mean in (
        ("var", False, False), ("std", True, False), ("var_mean", False, True), ("std_mean", True, True),
    )
    for overload, rule in zip(("correction", "dim", "default"), _variance(root, with_mean), strict=True)
}  # fmt: skip

RULES: dict[str, Rule] = {
    "aten.sum.default": over_all_dims(sum_), "aten.sum.dim_IntList": sum_,
    "aten.mean.default": over_all_dims(mean), "aten.mean.dim": mean,
    "aten.prod.default": over_all_dims(prod), "aten.prod.dim_int": one_dim,
    "aten.amax.default": amax, "aten.amin.default": amin,
    "aten.max.default": over_all_dims(amax), "aten.min.default": over_all_dims(amin),
    "aten.max.dim": _extreme_rule("max"), "aten.min.dim": _extreme_rule("min"),
    "aten.argmax.default": _arg_rule("max"), "aten.argmin.default": _arg_rule("min"),
    "aten.any.default": over_all_dims(any_), "aten.any.dim": any_, "aten.any.dims": any_,
    "aten.all.default": over_all_dims(all_), "aten.all.dim": all_, "aten.all.dims": all_,
    "aten.linalg_vector_norm.default": vector_norm, "aten.logsumexp.default": logsumexp,
    **_VARIANCES,
}  # fmt: skip
