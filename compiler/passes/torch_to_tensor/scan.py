"""Cumulative reductions along one dimension: sums, products, and extremes with the index of the last occurrence."""

from __future__ import annotations

from compiler.ir.dtype import DType, i64
from compiler.ir.expr import Expr, const, op
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, dims
from compiler.passes.torch_to_tensor.reduce import convert_elements


def _cumulative(reduction: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int, dtype: DType | None = None) -> Value:
        element = convert_elements(self, b.out.dtype if dtype is None else dtype)
        axes = dims(b, dim, self.rank)
        if not axes:
            return b.map(self.shape, element)
        return b.scan(reduction, self.shape, axes[0], element)

    return rule


def _cumulative_extreme(reduction: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int) -> tuple[Value, Value]:
        axes = dims(b, dim, self.rank)
        if not axes:
            return self, b.map(self.shape, lambda at: const(0, i64))
        d = axes[0]
        best = b.scan(reduction, self.shape, d, self.rounded_at, reduction)

        def position_at(at: Index) -> Expr:
            """The index of an element that is the extreme so far; the last one of ties, and of NaNs."""
            value = self.rounded_at(at)
            is_extreme = op("eq", value, best.at(at))
            if self.dtype.is_float:
                is_extreme = op("or", is_extreme, op("isnan", value))
            return op("where", is_extreme, at[d], -1)

        return best, b.scan("max", self.shape, d, position_at, "index")

    return rule


RULES: dict[str, Rule] = {
    "aten.cumsum.default": _cumulative("sum"),
    "aten.cumprod.default": _cumulative("prod"),
    "aten.cummax.default": _cumulative_extreme("max"),
    "aten.cummin.default": _cumulative_extreme("min"),
}
