"""Views that torch defines by strides, and scatters into them; the index of each element follows from the strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from compiler.ir.dtype import boolean
from compiler.ir.expr import Expr, cast, const, dim, op, static
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Update, Value
from compiler.passes.torch_to_tensor.indexing import scatter_updates
from compiler.passes.torch_to_tensor.positions import is_dense, is_wide, map_view


def as_strided(
    b: Builder, self: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """The offset counts from the first element of `self`; the frontend refuses others."""
    source = _index_by_strides(b, self, size, stride, storage_offset)
    return map_view(b, self, b.out.shape, source)


def as_strided_scatter(
    b: Builder, self: Value, src: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """Of several stores to one element, the last that changes it counts.

    This is how torch writes a view that was changed back to its base: an element that the view holds several times was
    changed through one of them.
    """
    source, overlaps = _index_by_strides(b, self, size, stride, storage_offset), _may_overlap(size, stride)

    def update(r: Index) -> Update:
        at, value = source(r), cast(src.at(r), self.compute)
        if not overlaps:
            return at, value
        old = self.at(at)
        changed = op("xor" if value.dtype is boolean else "ne", value, old)
        if value.dtype.is_float:  # zeros of two signs are equal
            changed = op("or", changed, op("xor", op("signbit", value), op("signbit", old)))
        return at, value, changed

    return scatter_updates(b, "set", self, src.shape, update)


def _may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a view may hold an element several times: a step along some axis is no longer than those below it."""
    reach = 0
    for step, count in sorted(zip(stride, size, strict=True)):
        if count > 1 and step <= reach:
            return True
        reach += (count - 1) * step
    return False


def _index_by_strides(
    b: Builder, self: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> Callable[[Index], Index]:
    """The index into `self` of each element of a view by strides."""
    if len(self.strides) != self.rank or not is_dense(self.shape, self.strides):
        raise b.refuse("the tensor that is looked at does not fill its memory")
    first = storage_offset or 0
    last = first + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and last >= math.prod(static(n, "a size under as_strided") for n in self.shape):
        raise b.refuse("the view reaches beyond the elements of the tensor")

    def source(at: Index) -> Index:
        position: Expr = const(first)
        for i, step in zip(at, stride, strict=True):
            position = position + i * step
        return _index_at(position, self)

    return source


def _index_at(position: Expr, x: Value) -> Index:
    """The index of the element at a position in the memory of `x`, which is dense."""
    out = [dim(0)] * x.rank
    wide = sorted((static(x.strides[d]), d) for d, n in enumerate(x.shape) if is_wide(n))
    for stride, d in reversed(wide):
        out[d] = position // stride
        position = position % stride
    return tuple(out)


RULES: dict[str, Rule] = {
    "aten.as_strided.default": as_strided, "aten.as_strided_scatter.default": as_strided_scatter,
}  # fmt: skip
