"""Cumulative reductions along one dimension: sums, products, and extremes with the index of the last occurrence."""

from __future__ import annotations

from compiler.ir.dtype import DType, i64
from compiler.ir.expr import Expr, const, op
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, dims
from compiler.passes.torch_to_tensor.reduce import converted


def _running(how: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int, dtype: DType | None = None) -> Value:
        element = converted(self, b.out.dtype if dtype is None else dtype)
        which = dims(b, dim, self.rank)
        if not which:
            return b.map(self.shape, element)
        return b.scan(how, self.shape, which[0], element)

    return rule


def _running_extreme(how: str) -> Rule:
    def rule(b: Builder, self: Value, dim: int) -> tuple[Value, Value]:
        which = dims(b, dim, self.rank)
        if not which:
            return self, b.map(self.shape, lambda at: const(0, i64))
        d = which[0]
        best = b.scan(how, self.shape, d, self.rounded_at, how)

        def place(at: Index) -> Expr:
            """The index of an element that is the extreme so far; the last one of ties, and of NaNs."""
            here = self.rounded_at(at)
            found = op("eq", here, best.at(at))
            if self.dtype.is_float:
                found = op("or", found, op("isnan", here))
            return op("where", found, at[d], -1)

        return best, b.scan("max", self.shape, d, place, "index")

    return rule


RULES: dict[str, Rule] = {
    "aten.cumsum.default": _running("sum"),
    "aten.cumprod.default": _running("prod"),
    "aten.cummax.default": _running_extreme("max"),
    "aten.cummin.default": _running_extreme("min"),
}
