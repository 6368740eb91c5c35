"""Indexing by tensors: a gather is a map that loads at a loaded index, a scatter stores or combines at one.

Negative indices count from the end where they do in torch. Where torch raises an error for an index out of range, the
program fails; no access leaves the tensor. Repeated stores to one position apply in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.ir.dtype import STORAGE_ONLY, boolean, i64
from compiler.ir.expr import COMBINE, Expr, cast, const, identity, op, static
from compiler.passes.torch_to_tensor.builder import (
    Builder,
    Index,
    Rule,
    Shape,
    Update,
    Value,
    broadcast,
    converted_at,
    is_one,
    merge,
    reduction_name,
    set_dim,
)
from compiler.passes.torch_to_tensor.pointwise import scalar
from compiler.passes.torch_to_tensor.positions import (
    NO_INDEX,
    NoElement,
    broadcast_shape,
    flat_index,
    is_empty,
    one_dim,
    require_in_range,
    stored_element,
    unflatten,
    wrap_index,
    zeros,
)
from compiler.passes.torch_to_tensor.views import reshape_to

Number = bool | int | float


def gather_elements(b: Builder, self: Value, shape: Shape, source: Callable[[Index], Index]) -> Value:
    """Element `source(at)` of `self` for every `at` of `shape`."""
    if is_empty(shape):
        return zeros(b, shape, self)
    if is_empty(self.shape):
        raise b.refuse("an index into a tensor without elements")
    return b.map(shape, lambda at: stored_element(self, source(at)), "gathered")


def gather(b: Builder, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    del sparse_grad
    d = one_dim(b, dim, self.rank)
    if not self.rank:
        return b.map(index.shape, lambda at: _require_zero_index(index.at(at), stored_element(self, ())), "gathered")
    return gather_elements(b, self, index.shape, lambda at: _index_along(self, at, d, index.at(at)))


def _index_along(x: Value, at: Index, d: int, position: Expr) -> Index:
    """The index into `x` that is `at` except in dimension `d`; () for a scalar."""
    return set_dim(at, d, require_in_range(position, x.shape[d])) if x.rank else ()


def _require_zero_index(position: Expr, value: Expr) -> Expr:
    """An element read from or written to a scalar, whose index must be 0."""
    return op("require", op("eq", cast(position, i64), 0), value)


def take_along_dim(b: Builder, self: Value, indices: Value, dim: int | None = None) -> Value:
    """Tensors broadcast in all dimensions but `dim`, where an index wraps around; without `dim`, both are flattened."""
    if dim is None:
        count = _element_count(self)
        return gather_elements(
            b, self, b.out.shape, lambda at: unflatten(require_in_range(_flat_element(indices, at), count), self.shape)
        )
    d = one_dim(b, dim, self.rank)

    def source(at: Index) -> Index:
        position = cast(indices.at(broadcast(indices, at)), i64) % self.shape[d]
        return set_dim(broadcast(self, at), d, position)

    return gather_elements(b, self, b.out.shape, source)


def _flat_element(x: Value, at: Index) -> Expr:
    return x.at(unflatten(at[0], x.shape))


def _element_count(x: Value) -> Expr:
    return flat_index([n - 1 for n in x.shape], x.shape) + 1


def take(b: Builder, self: Value, index: Value) -> Value:
    return gather_elements(
        b, self, index.shape, lambda at: unflatten(wrap_index(index.at(at), _element_count(self)), self.shape)
    )


def index_select(b: Builder, self: Value, dim: int, index: Value) -> Value:
    d = one_dim(b, dim, self.rank)
    if not self.rank:
        if not all(map(is_one, index.shape)):
            raise b.refuse("a scalar has one element")
        return b.map(
            (), lambda at: _require_zero_index(_list_entry(index, const(0, i64)), stored_element(self, ())), "gathered"
        )
    return _gather_result(b, self, index, lambda at: _index_along(self, at, d, _list_entry(index, at[d])))


def _gather_result(b: Builder, self: Value, index: Value, source: Callable[[Index], Index]) -> Value:
    """Elements in the shape of the result. Refuses an empty result with indices, which eager checks nevertheless."""
    if is_empty(b.out.shape) and not is_empty(index.shape):
        raise b.refuse("the result has no elements with which its index could be checked")
    return gather_elements(b, self, b.out.shape, source)


def _list_entry(index: Value, i: Expr) -> Expr:
    """Entry `i` of a list of indices, which may be a scalar."""
    return index.at((i,) if index.rank else ())


def embedding(
    b: Builder, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:  # fmt: skip
    """Rows of a table; padding and scaling concern gradients only."""
    del padding_idx, scale_grad_by_freq, sparse
    rest = weight.rank - 1

    def source(at: Index) -> Index:
        return (require_in_range(indices.at(at[: len(at) - rest]), weight.shape[0]), *at[len(at) - rest :])

    return _gather_result(b, weight, indices, source)


# x[i, :, j] -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Dimensions `dims` are indexed together by tensors of shape `points`, which begins at dimension `first`."""

    tensors: tuple[Value, ...]
    dims: tuple[int, ...]
    points: Shape
    first: int

    def source(self, x: Value, at: Index) -> Index:
        """The index into `x` for an index of the result."""
        last = self.first + len(self.points)
        point, rest = at[self.first : last], (*at[: self.first], *at[last:])
        positions = (
            wrap_index(t.at(broadcast(t, point)), x.shape[d]) for t, d in zip(self.tensors, self.dims, strict=True)
        )
        return merge(rest, tuple(positions), self.dims)

    def shape(self, x: Value) -> Shape:
        rest = tuple(n for d, n in enumerate(x.shape) if d not in self.dims)
        return (*rest[: self.first], *self.points, *rest[self.first :])


def select_by_tensors(b: Builder, indices: Sequence[Value | None], source: Value) -> Selection:
    dims = tuple(d for d, t in enumerate(indices) if t is not None)
    tensors = tuple(t for t in indices if t is not None)
    if any(t.dtype.kind not in ("int", "uint") or t.dtype.name == "u8" for t in tensors):
        raise b.refuse("a mask picks as many elements as it has ones, which depends on the data")
    is_contiguous = dims == tuple(range(dims[0], dims[0] + len(dims)))
    points = broadcast_shape([t.shape for t in tensors])
    if is_empty(tuple(source.shape[d] for d in dims)) and not is_empty(points):
        raise NoElement(NO_INDEX)
    return Selection(tensors, dims, points, dims[0] if is_contiguous else 0)


def index(b: Builder, self: Value, indices: Sequence[Value | None]) -> Value:
    if all(t is None for t in indices):
        return self
    selection = select_by_tensors(b, indices, self)
    return gather_elements(b, self, b.out.shape, lambda at: selection.source(self, at))


def index_put(
    b: Builder, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False,
    unsafe: bool = False,
) -> Value:  # fmt: skip
    del unsafe
    match [t for t in indices if t is not None]:
        case []:
            raise b.refuse("no index")
        case [mask] if mask.dtype is boolean:
            return _masked_put(b, self, indices, mask, values, accumulate)
    selection = select_by_tensors(b, indices, self)

    def update(r: Index) -> tuple[Index, Expr]:
        return selection.source(self, r), cast(values.at(broadcast(values, r)), self.compute)

    return scatter_updates(b, "sum" if accumulate else "set", self, selection.shape(self), update)


def _masked_put(
    b: Builder, self: Value, indices: Sequence[Value | None], mask: Value, values: Value, accumulate: bool
) -> Value:
    """Store values in order where a mask over some dimensions holds; a single value is stored everywhere there."""
    first = next(d for d, t in enumerate(indices) if t is not None)
    last = first + mask.rank
    trailing = self.rank - last  # dimensions of the values after the one that numbers them
    is_single = values.rank <= trailing or _is_one_value(values.shape[-trailing - 1])
    ranks = None if is_single else _mask_ranks(b, mask)

    def element(at: Index) -> Expr:
        rank: Expr = const(0, i64)
        if ranks is not None:
            rank = ranks.at((flat_index(at[first:last], mask.shape),)) - 1
            rank = require_in_range(op("where", mask.at(at[first:last]), rank, 0), values.shape[-trailing - 1])
        old = self.at(at)
        new = cast(values.at(broadcast(values, (*at[:first], rank, *at[last:]))), self.compute)
        combined = _combine("sum", old, new) if accumulate else new
        return op("where", mask.at(at[first:last]), combined, old)

    return b.map(self.shape, element)


def _mask_ranks(b: Builder, mask: Value) -> Value:
    """For each element of a mask, in row-major order, how many hold up to it."""
    return b.scan("sum", (_element_count(mask),), 0, lambda at: cast(_flat_element(mask, at), i64), "number")


def masked_scatter(b: Builder, self: Value, mask: Value, source: Value) -> Value:
    """Store elements of the source, in order, where the mask holds."""
    shape = b.out.shape
    full_mask = b.map(shape, lambda at: mask.at(broadcast(mask, at)), "mask")
    ranks = _mask_ranks(b, full_mask)

    def element(at: Index) -> Expr:
        old = self.at(broadcast(self, at))
        is_set = full_mask.at(at)
        rank = require_in_range(op("where", is_set, ranks.at((flat_index(at, shape),)) - 1, 0), _element_count(source))
        return op("where", is_set, cast(_flat_element(source, (rank,)), self.compute), old)

    if is_empty(source.shape):  # no place may be set
        return b.map(shape, lambda at: op("require", op("not", full_mask.at(at)), self.at(broadcast(self, at))))
    return b.map(shape, element)


def _is_one_value(n: Expr) -> bool:
    return static(n, "the number of values") == 1


# Scatters -------------------------------------------------------------------------------------------------------------


def scatter_updates(
    b: Builder, reduction: str, self: Value, over: Shape, update: Callable[[Index], Update],
    base: Callable[[Index], Expr] | None = None,
) -> Value:  # fmt: skip
    """`self` with updates stored or combined."""
    if is_empty(over):
        return self
    if is_empty(self.shape):
        raise b.refuse("an index into a tensor without elements")
    reduction = reduction_name(reduction, self.dtype)
    base = base or self.at
    if reduction != "set" or self.dtype not in STORAGE_ONLY:
        return b.scatter(reduction, self.shape, base, over, update)
    # A value that is only moved is stored as torch stores it.
    dtype, base_at = self.dtype, base

    def stored_update(r: Index) -> Update:
        at, value, *guard = update(r)
        moved = at, cast(value, dtype)
        return (*moved, guard[0]) if guard else moved

    return b.scatter(reduction, self.shape, lambda at: cast(base_at(at), dtype), over, stored_update)


def _combine(reduction: str, x: Expr, y: Expr) -> Expr:
    return op(COMBINE[reduction_name(reduction, x.dtype)], x, y)


def _scatter(b: Builder, reduction: str, self: Value, dim: int, index: Value, value: Callable[[Index], Expr]) -> Value:
    d = one_dim(b, dim, self.rank)
    if reduction == "set" and self.rank and _is_one_per_row(self, d, index):
        return _scatter_one_per_row(b, self, d, index, value)

    def update(r: Index) -> tuple[Index, Expr]:
        position = index.at(r)
        return _index_along(self, r, d, position), value(r) if self.rank else _require_zero_index(position, value(r))

    return scatter_updates(b, reduction, self, index.shape, update)


def _is_one_per_row(self: Value, d: int, index: Value) -> bool:
    same_rows = all(k == d or n is index.shape[k] for k, n in enumerate(self.shape))
    return same_rows and is_one(index.shape[d]) and not is_empty(self.shape)


def _scatter_one_per_row(b: Builder, self: Value, d: int, index: Value, value: Callable[[Index], Expr]) -> Value:
    """A scatter of one element per row as a map: each element compares its position. Unlike a scatter, it fuses."""

    def element(at: Index) -> Expr:
        row = set_dim(at, d, const(0, i64))
        is_target = op("eq", at[d], require_in_range(index.at(row), self.shape[d]))
        new, old = (cast(x, self.dtype) for x in (value(row), self.at(at)))
        return op("where", is_target, new, old)

    return b.map(self.shape, element, "chosen")


def scatter_src(b: Builder, self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(b, "set", self, dim, index, lambda r: cast(src.at(r), self.compute))


def scatter_value(b: Builder, self: Value, dim: int, index: Value, value: Number) -> Value:
    return _scatter(b, "set", self, dim, index, lambda r: scalar(b, value, self.dtype))


_COMBINE = {"add": "sum", "multiply": "prod", "sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}


def _reduction_of(b: Builder, reduce: str) -> str:
    if reduce not in _COMBINE:
        raise b.refuse(f"reduce={reduce!r}")
    return _COMBINE[reduce]


def scatter_src_reduce(b: Builder, self: Value, dim: int, index: Value, src: Value, *, reduce: str) -> Value:
    return _scatter(b, _reduction_of(b, reduce), self, dim, index, lambda r: cast(src.at(r), self.compute))


def scatter_value_reduce(b: Builder, self: Value, dim: int, index: Value, value: Number, *, reduce: str) -> Value:
    return _scatter(b, _reduction_of(b, reduce), self, dim, index, lambda r: scalar(b, value, self.dtype))


def scatter_add(b: Builder, self: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter_src_reduce(b, self, dim, index, src, reduce="sum")


def scatter_reduce(
    b: Builder, self: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """Without `include_self`, elements that receive an update start from the identity of the reduction."""
    d = one_dim(b, dim, self.rank)
    is_mean = reduce == "mean"
    reduction = _reduction_of(b, "sum" if is_mean else reduce)
    if is_empty(index.shape):
        return self

    def target(r: Index) -> Index:
        return _index_along(self, r, d, index.at(r))

    def value(r: Index) -> tuple[Index, Expr]:
        new = cast(src.at(r), self.compute)
        return target(r), new if self.rank else _require_zero_index(index.at(r), new)

    base: Callable[[Index], Expr] = self.at
    if not include_self:
        true = const(True, boolean)
        is_written = b.scatter(
            "set", self.shape, lambda at: const(False, boolean), index.shape, lambda r: (target(r), true), "hit"
        )

        def initial(at: Index) -> Expr:
            return op("where", is_written.at(at), identity(reduction, self.compute), self.at(at))

        base = initial
    combined = scatter_updates(b, reduction, self, index.shape, value, base)
    if not is_mean:
        return combined
    counts = b.scatter(
        "sum",
        self.shape,
        lambda at: const(int(include_self), i64),
        index.shape,
        lambda r: (target(r), const(1, i64)),
        "count",
    )

    def average(at: Index) -> Expr:
        count = cast(op("max", counts.at(at), 1), self.compute)
        return op("div" if self.dtype.is_float else "floordiv", combined.at(at), count)

    return b.map(self.shape, average)


def _scatter_listed(
    b: Builder, reduction: str, self: Value, dim: int, index: Value, over: Shape, value: Callable[[Index], Expr],
    checked_index: Callable[[Expr, Expr], Expr] = require_in_range,
) -> Value:  # fmt: skip
    """Updates whose positions along one dimension are listed; `checked_index` checks or wraps each."""
    d = one_dim(b, dim, self.rank)

    def update(r: Index) -> tuple[Index, Expr]:
        position = _list_entry(index, r[d] if r else const(0, i64))
        if not self.rank:
            return (), _require_zero_index(position, value(r))
        return set_dim(r, d, checked_index(position, self.shape[d])), value(r)

    return scatter_updates(b, reduction, self, over, update)


def index_add(b: Builder, self: Value, dim: int, index: Value, source: Value, *, alpha: Number = 1) -> Value:
    def value(r: Index) -> Expr:
        new = cast(source.at(r), self.compute)
        return new if alpha == 1 else _combine("prod", new, scalar(b, alpha, self.dtype))

    return _scatter_listed(b, "sum", self, dim, index, source.shape, value)


def index_copy(b: Builder, self: Value, dim: int, index: Value, source: Value) -> Value:
    return _scatter_listed(b, "set", self, dim, index, source.shape, lambda r: cast(source.at(r), self.compute))


def index_fill(b: Builder, self: Value, dim: int, index: Value, value: Number | Value) -> Value:
    d = one_dim(b, dim, self.rank)
    count = index.shape[0] if index.rank else const(1, i64)
    over = (*self.shape[:d], count, *self.shape[d + 1 :]) if self.rank else ()
    return _scatter_listed(b, "set", self, dim, index, over, lambda r: _scalar_element(b, value, self), wrap_index)


def masked_fill(b: Builder, self: Value, mask: Value, value: Number | Value) -> Value:
    def element(at: Index) -> Expr:
        return op("where", mask.at(broadcast(mask, at)), _scalar_element(b, value, self), self.at(broadcast(self, at)))

    return b.map(b.out.shape, element)


def _scalar_element(b: Builder, value: Number | Value, like: Value) -> Expr:
    """A number, or the element of a scalar tensor, in the type of `like`."""
    if isinstance(value, Value):
        return converted_at(value, [0] * value.rank, like.dtype)
    return scalar(b, value, like.dtype)


def put(b: Builder, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """Positions are row-major."""

    def update(r: Index) -> tuple[Index, Expr]:
        return unflatten(wrap_index(index.at(r), _element_count(self)), self.shape), cast(values.at(r), self.compute)

    values = reshape_to(b, source, index.shape)
    return scatter_updates(b, "sum" if accumulate else "set", self, index.shape, update)


RULES: dict[str, Rule] = {
    "aten.gather.default": gather, "aten.take_along_dim.default": take_along_dim, "aten.take.default": take,
    "aten.index_select.default": index_select, "aten.embedding.default": embedding,
    "aten.index.Tensor": index, "aten._unsafe_index.Tensor": index,
    "aten.index_put.default": index_put, "aten._unsafe_index_put.default": index_put,
    "aten._index_put_impl.default": index_put, "aten.put.default": put,
    "aten.scatter.src": scatter_src, "aten.scatter.value": scatter_value,
    "aten.scatter.reduce": scatter_src_reduce, "aten.scatter.value_reduce": scatter_value_reduce,
    "aten.scatter_add.default": scatter_add, "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_add.default": index_add, "aten.index_copy.default": index_copy,
    "aten.index_fill.int_Scalar": index_fill, "aten.index_fill.int_Tensor": index_fill,
    "aten.masked_scatter.default": masked_scatter,
    "aten.masked_fill.Scalar": masked_fill, "aten.masked_fill.Tensor": masked_fill,
}  # fmt: skip
