"""Sorting by counting: an element's place is the number of those that come before it, and so of n² comparisons."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, cast, const, op
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, set_dim
from compiler.passes.torch_to_tensor.positions import is_empty, one_dim, zeros


def sort(b: Builder, self: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return _first(b, self, dim, self.shape, descending)


def stable_sort(
    b: Builder, self: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    del stable  # it always is
    return sort(b, self, dim, descending)


def topk(
    b: Builder, self: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """Which of equal elements are taken is torch's secret; here it is the first ones."""
    del sorted  # it always is
    return _first(b, self, dim, set_dim(self.shape, one_dim(b, dim, self.rank), k) if self.rank else (), largest)


def _first(b: Builder, self: Value, dim: int, shape: Shape, descending: bool) -> tuple[Value, Value]:
    """The elements whose places along `dim` lie within `shape`, and where each was."""
    nowhere = Value("", i64, shape, i64)
    if is_empty(shape):
        return zeros(b, shape, self), zeros(b, shape, nowhere)
    if not self.rank:
        return self, zeros(b, shape, nowhere)
    d = one_dim(b, dim, self.rank)

    def beats(x: Expr, y: Expr) -> Expr:
        return _less(y, x) if descending else _less(x, y)

    def comes_before(at: Index, r: Index) -> Expr:
        """Whether element `r` goes before the one at `at`: of equal ones, whether it was before."""
        there, here = self.at(set_dim(at, d, r[0])), self.at(at)
        return cast(op("where", op("lt", r[0], at[d]), op("not", beats(here, there)), beats(there, here)), i64)

    places = b.reduce("sum", self.shape, (self.shape[d],), comes_before, "place")

    def put(value: Callable[[Index], Expr], hint: str) -> Value:
        def update(r: Index) -> tuple[Index, Expr, Expr]:
            return set_dim(r, d, places.at(r)), value(r), op("lt", places.at(r), shape[d])

        return b.scatter("set", shape, lambda at: const(0, value(at).dtype), self.shape, update, hint)

    return put(self.at, "value"), put(lambda r: r[d], "index")


def _less(x: Expr, y: Expr) -> Expr:
    """NaN is greater than all else."""
    less = op("lt", x, y)
    if not x.dtype.is_float:
        return less
    return op("or", less, op("and", op("isnan", y), op("not", op("isnan", x))))


RULES: dict[str, Rule] = {
    "aten.sort.default": sort,
    "aten.sort.stable": stable_sort,
    "aten.topk.default": topk,
}
