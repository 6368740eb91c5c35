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
    merge,
    ones,
    without,
)
from compiler.passes.torch_to_tensor.positions import NoElement, is_empty

Dims = int | Sequence[int] | None
Element = Callable[[Index], Expr]


def over(
    b: Builder, how: str, shape: Shape, which: Sequence[int], keepdim: bool, element: Element, hint: str = "reduced"
) -> Value:
    """Reduce dimensions `which` of an index space of `shape`; they stay with size 1 if `keepdim`."""
    gone = tuple(shape[d] for d in which)
    if keepdim:
        return b.reduce(how, ones(shape, which), gone, lambda at, r: element(_put(at, r, which)), hint)
    return b.reduce(how, without(shape, which), gone, lambda at, r: element(merge(at, r, which)), hint)


def _put(at: Index, r: Index, which: Sequence[int]) -> Index:
    """The index with its dimensions `which` replaced."""
    inner = dict(zip(which, r, strict=True))
    return tuple(inner.get(d, i) for d, i in enumerate(at))


def kept(at: Index, which: Sequence[int], keepdim: bool) -> Index:
    """The index into a reduced value for an index of the original shape."""
    return _put(at, (const(0, i64),) * len(which), which) if keepdim else without(at, which)


def converted(x: Value, dtype: DType) -> Element:
    """Elements rounded to `dtype`, as an explicit `dtype=` demands; unchanged if it is their own."""
    if dtype is x.dtype:
        return x.at
    return lambda at: converted_at(x, at, dtype)


def _fold(how: str) -> Callable[..., Value]:
    def rule(b: Builder, self: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
        which = dims(b, dim, self.rank)
        kind = boolean if how in ("and", "or") else b.out.dtype if dtype is None else dtype
        made = over(b, how, self.shape, which, keepdim, converted(self, kind))
        if how in ("and", "or") and b.out.dtype is not boolean:
            return b.map(made.shape, lambda at: cast(made.at(at), b.out.dtype))
        return made

    return rule


sum_, prod, amax, amin, all_, any_ = map(_fold, ("sum", "prod", "max", "min", "and", "or"))


def everything(rule: Callable[..., Value]) -> Rule:
    """The overload that reduces all dimensions and has no `dim`."""

    def full(b: Builder, self: Value) -> Value:
        if rule in (amax, amin):
            _some(self.shape)
        return rule(b, self)

    def with_dtype(b: Builder, self: Value, dtype: DType | None = None) -> Value:
        return rule(b, self, dtype=dtype)

    return with_dtype if rule in (sum_, prod, mean) else full


def one_dim(b: Builder, self: Value, dim: int, keepdim: bool = False, dtype: DType | None = None) -> Value:
    return prod(b, self, dim, keepdim, dtype)


def mean(b: Builder, self: Value, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Value:
    which = dims(b, dim, self.rank)
    total = over(b, "sum", self.shape, which, keepdim, converted(self, dtype or self.dtype), "total")
    count = cast(numel(tuple(self.shape[d] for d in which)), total.compute)
    return b.map(total.shape, lambda at: total.at(at) / count)


def _some(extents: Shape) -> None:
    if is_empty(extents):
        raise NoElement("there is no extreme of no elements")


def _places(b: Builder, how: str, self: Value, which: Sequence[int], keepdim: bool) -> tuple[Value, Value]:
    """The extreme, and the least index of it or of NaN, in the dimensions `which` flattened.

    Elements are as torch would have stored them, since rounding decides which are equal.
    """
    _some(tuple(self.shape[d] for d in which))
    best = over(b, how, self.shape, which, keepdim, self.rounded_at, how)
    count = numel(tuple(self.shape[d] for d in which))

    def place(at: Index) -> Expr:
        flat: Expr = const(0, i64)
        for d in which:
            flat = flat * self.shape[d] + at[d]
        here = self.rounded_at(at)
        found = op("eq", here, best.at(kept(at, which, keepdim)))
        if self.dtype.is_float:
            found = op("or", found, op("isnan", here))
        return op("where", found, flat, count)

    return best, over(b, "min", self.shape, which, keepdim, place, "index")


def _arg(how: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if self.dtype is boolean:
            raise b.refuse("torch has no place of an extreme of truth values")
        return _places(b, how, self, dims(b, dim, self.rank), keepdim)[1]

    return rule


def _extreme(how: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        return _places(b, how, self, dims(b, dim, self.rank), keepdim)

    return rule


# Moments --------------------------------------------------------------------------------------------------------------


def moments(
    b: Builder, shape: Shape, which: Sequence[int], keepdim: bool, element: Element, correction: float = 0
) -> tuple[Value, Value]:
    """Mean and variance in two passes, so that a large mean does not cancel the variance."""
    count = numel(tuple(shape[d] for d in which))
    total = over(b, "sum", shape, which, keepdim, element, "total")
    center = b.map(total.shape, lambda at: total.at(at) / cast(count, total.compute), "mean")

    def square(at: Index) -> Expr:
        off = element(at) - center.at(kept(at, which, keepdim))
        return off * off

    squares = over(b, "sum", shape, which, keepdim, square, "squares")
    left = _left(count, correction, total.compute)
    spread = b.map(total.shape, lambda at: squares.at(at) / left, "variance")
    return center, spread


def _left(count: Expr, correction: float, dtype: DType) -> Expr:
    """The degrees of freedom that a variance is divided by, never below 0."""
    if isinstance(count, Const) or correction != int(correction):
        return const(max(static(count, "the number of elements of a variance") - correction, 0), dtype)
    return cast(op("max", count - int(correction), 0), dtype)


def _without_infinities(b: Builder, x: Value) -> Value:
    """Replace infinities by NaN."""

    def element(at: Index) -> Expr:
        here = x.at(at)
        return op("where", op("eq", op("abs", here), math.inf), here - here, here)

    return b.map(x.shape, element, "center")


def _variance(root: bool, with_mean: bool) -> tuple[Rule, Rule, Rule]:
    """The overloads `correction`, `dim` and `default`."""

    def correction_rule(
        b: Builder, self: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False
    ) -> Value | tuple[Value, Value]:
        offset = 1 if correction is None else correction
        center, spread = moments(b, self.shape, dims(b, dim, self.rank), keepdim, self.at, offset)
        if with_mean:  # torch computes both in one pass, in which an infinity makes both NaN
            center = _without_infinities(b, center)
        if root:
            variance = spread
            spread = b.map(variance.shape, lambda at: op("sqrt", variance.at(at)), "deviation")
        return (spread, center) if with_mean else spread

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
    which = dims(b, dim, self.rank)
    element = converted(self, dtype or self.dtype)

    def size(at: Index) -> Expr:
        return op("abs", element(at))

    def reduced(how: str, value: Element, hint: str = "reduced") -> Value:
        return over(b, how, self.shape, which, keepdim, value, hint)

    if math.isinf(ord):
        return reduced("max" if ord > 0 else "min", size)
    match ord:
        case 0:
            return reduced("sum", lambda at: cast(op("ne", element(at), 0), dt.compute(b.out.dtype)))
        case 1:
            return reduced("sum", size)
        case 2:
            squares = reduced("sum", lambda at: element(at) * element(at), "squares")
            return b.map(squares.shape, lambda at: op("sqrt", squares.at(at)))
    powers = reduced("sum", lambda at: op("pow", size(at), float(ord)), "powers")
    return b.map(powers.shape, lambda at: op("pow", powers.at(at), 1 / ord))


def logsumexp(b: Builder, self: Value, dim: Dims, keepdim: bool = False) -> Value:
    """Shifted by the maximum if that is finite, so that an infinite maximum is the result."""
    which = dims(b, dim, self.rank)
    element = converted(self, b.out.dtype)
    best = over(b, "max", self.shape, which, keepdim, element, "max")

    def shift(at: Index) -> Expr:
        top = best.at(at)
        return op("where", op("eq", op("abs", top), math.inf), const(0, top.dtype), top)

    total = over(
        b, "sum", self.shape, which, keepdim,
        lambda at: op("exp", element(at) - shift(kept(at, which, keepdim))), "total",
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
    "aten.sum.default": everything(sum_), "aten.sum.dim_IntList": sum_,
    "aten.mean.default": everything(mean), "aten.mean.dim": mean,
    "aten.prod.default": everything(prod), "aten.prod.dim_int": one_dim,
    "aten.amax.default": amax, "aten.amin.default": amin,
    "aten.max.default": everything(amax), "aten.min.default": everything(amin),
    "aten.max.dim": _extreme("max"), "aten.min.dim": _extreme("min"),
    "aten.argmax.default": _arg("max"), "aten.argmin.default": _arg("min"),
    "aten.any.default": everything(any_), "aten.any.dim": any_, "aten.any.dims": any_,
    "aten.all.default": everything(all_), "aten.all.dim": all_, "aten.all.dims": all_,
    "aten.linalg_vector_norm.default": vector_norm, "aten.logsumexp.default": logsumexp,
    **_VARIANCES,
}  # fmt: skip
