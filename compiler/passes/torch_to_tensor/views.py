"""Views and rearrangements: maps whose index expression says where the elements come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.ir.expr import Expr, both, cast, const, op, product, select, static
from compiler.ir.expr import dim as as_dim
from compiler.ir.index import simplify
from compiler.ir.value_ranges import value_range
from compiler.passes.torch_to_tensor.builder import (
    Builder,
    Index,
    Rule,
    Shape,
    Value,
    broadcast,
    dims,
    drop_dims,
    merge,
    set_dim,
)
from compiler.passes.torch_to_tensor.positions import (
    flat_index,
    is_empty,
    map_view,
    one_dim,
    ranges,
    reshaped_index,
    stored_element,
    unflatten,
)


def reshape_to(b: Builder, self: Value, shape: Shape) -> Value:
    """The same elements in row-major order in another shape."""
    return self if shape == self.shape else map_view(b, self, shape, lambda at: reshaped_index(at, shape, self.shape))


def as_declared(b: Builder, self: Value, *size: object, **dims: object) -> Value:
    """Reshapes and squeezes; the declared shape has the sizes, with -1 resolved."""
    del size, dims
    return reshape_to(b, self, b.out.shape)


def like_other(b: Builder, self: Value, other: Value) -> Value:
    """`view_as` and `reshape_as`."""
    return reshape_to(b, self, other.shape)


# Dimensions in another order ------------------------------------------------------------------------------------------


def permute_dims(b: Builder, self: Value, order: Sequence[int]) -> Value:
    """Dimension k of the result is dimension order[k] of the tensor."""
    if list(order) == list(range(self.rank)):
        return self
    dim_of = {d: k for k, d in enumerate(order)}
    return map_view(b, self, tuple(self.shape[d] for d in order), lambda at: [at[dim_of[d]] for d in range(self.rank)])


def permute(b: Builder, self: Value, dims: Sequence[int]) -> Value:
    return permute_dims(b, self, [d % self.rank for d in dims])


def transpose(b: Builder, self: Value, dim0: int, dim1: int) -> Value:
    order = list(range(self.rank))
    if order:
        first, second = one_dim(b, dim0, self.rank), one_dim(b, dim1, self.rank)
        order[first], order[second] = second, first
    return permute_dims(b, self, order)


def reverse_order(b: Builder, self: Value) -> Value:
    """`x.T` and `torch.t`."""
    return permute_dims(b, self, list(reversed(range(self.rank))))


def matrix_transpose(b: Builder, self: Value) -> Value:
    return transpose(b, self, -2, -1) if self.rank else self


def movedim(b: Builder, self: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    sources = [source] if isinstance(source, int) else source
    targets = [destination] if isinstance(destination, int) else destination
    source_of = {one_dim(b, t, self.rank): one_dim(b, s, self.rank) for s, t in zip(sources, targets, strict=True)}
    rest = iter(d for d in range(self.rank) if d not in source_of.values())
    return permute_dims(b, self, [source_of[k] if k in source_of else next(rest) for k in range(self.rank)])


# Some of the elements -------------------------------------------------------------------------------------------------


def start_of(start: int | Expr | None, extent: Expr) -> Expr:
    """The first position of a slice: counted from the end if negative, clamped to the dimension."""
    if start is None:
        return const(0)
    return simplify(op("min", op("max", _from_start(start, extent), 0), extent), {}, index=True)


def _from_start(position: int | Expr, extent: Expr) -> Expr:
    """A position in a dimension; a negative one counts from the end."""
    signed = as_dim(position)
    low, high = value_range(signed, {})
    if high is not None and high < 0:
        return signed + extent
    if low is not None and low >= 0:
        return signed
    return op("where", op("lt", signed, 0), signed + extent, signed)


def _select_position(index: int | Expr, extent: Expr) -> Expr:
    """The position of one element, which torch has checked to be in range."""
    position = _from_start(index, extent)
    return position if isinstance(index, int) else op("min", op("max", position, 0), extent - 1)


def slice_(
    b: Builder, self: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    del end  # given by the declared shape
    d = one_dim(b, dim, self.rank)
    return slice_dim(b, self, b.out.shape, d, start_of(start, self.shape[d]), step)


def slice_dim(b: Builder, self: Value, shape: Shape, d: int, start: Expr | int, step: int = 1) -> Value:
    if shape == self.shape:
        return self
    return map_view(b, self, shape, lambda at: set_dim(at, d, at[d] * step + start))


def narrow(b: Builder, self: Value, dim: int, start: int, length: int) -> Value:
    del length
    return slice_(b, self, dim, start)


def select_index(b: Builder, self: Value, dim: int, index: int | Expr) -> Value:
    """`select`: one index of a dimension, which disappears."""
    d = one_dim(b, dim, self.rank)
    place = _select_position(index, self.shape[d])
    return map_view(b, self, drop_dims(self.shape, (d,)), lambda at: merge(at, (place,), (d,)))


def parts_at(b: Builder, self: Value, d: int, starts: Sequence[Expr | int]) -> tuple[Value | None, ...]:
    """The parts of dimension `d` that begin at `starts`, with the declared lengths."""
    return tuple(
        None if kind is None else slice_dim(b, self, kind.shape, d, start)
        for kind, start in zip(b.types, starts, strict=True)
    )


def split(b: Builder, self: Value, split_size: int, dim: int = 0) -> tuple[Value | None, ...]:
    return parts_at(b, self, one_dim(b, dim, self.rank), [k * split_size for k in range(len(b.types))])


def split_with_sizes(b: Builder, self: Value, split_sizes: Sequence[int], dim: int = 0) -> tuple[Value | None, ...]:
    starts = [sum(split_sizes[:k]) for k in range(len(split_sizes))]
    return parts_at(b, self, one_dim(b, dim, self.rank), starts)


def split_sizes_(b: Builder, self: Value, split_size: Sequence[int], dim: int = 0) -> tuple[Value | None, ...]:
    return split_with_sizes(b, self, split_size, dim)


def chunk(b: Builder, self: Value, chunks: int, dim: int = 0) -> tuple[Value | None, ...]:
    d = one_dim(b, dim, self.rank)
    n = static(self.shape[d], "a dimension that is split")
    return split(b, self, -(-n // chunks), d)


def tensor_split(b: Builder, self: Value, sections: int, dim: int = 0) -> tuple[Value | None, ...]:
    d = one_dim(b, dim, self.rank)
    size, longer_count = divmod(static(self.shape[d], "a dimension that is split"), sections)
    return parts_at(b, self, d, [k * size + min(k, longer_count) for k in range(sections)])


def tensor_split_at(b: Builder, self: Value, indices: Sequence[int], dim: int = 0) -> tuple[Value | None, ...]:
    d = one_dim(b, dim, self.rank)
    return parts_at(b, self, d, [0, *(start_of(i, self.shape[d]) for i in indices)])


def unbind(b: Builder, self: Value, dim: int = 0) -> tuple[Value | None, ...]:
    return tuple(None if kind is None else select_index(b, self, dim, k) for k, kind in enumerate(b.types))


def unfold(b: Builder, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows along a dimension; the position in a window is a new last dimension."""
    del size
    d = one_dim(b, dimension, self.rank)
    return map_view(b, self, b.out.shape, lambda at: set_dim(at[:-1], d, at[d] * step + at[-1]) if self.rank else ())


def diagonal(b: Builder, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    i, j = one_dim(b, dim1, self.rank), one_dim(b, dim2, self.rank)
    below, right = max(-offset, 0), max(offset, 0)

    def source(at: Index) -> Index:
        pair = {i: at[-1] + below, j: at[-1] + right}
        return merge(at[:-1], tuple(pair[d] for d in sorted(pair)), (i, j))

    return map_view(b, self, b.out.shape, source)


def diag_embed(b: Builder, self: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """Zeros with the last dimension on a diagonal."""
    shape = b.out.shape
    i, j = one_dim(b, dim1, len(shape)), one_dim(b, dim2, len(shape))
    below, right = max(-offset, 0), max(offset, 0)

    def element(at: Index) -> Expr:
        position = at[i] - below
        is_on_diagonal = both(op("ge", position, 0), op("eq", position, at[j] - right))
        rest = tuple(x for d, x in enumerate(at) if d not in (i, j))
        return select(simplify(is_on_diagonal, ranges(at, shape)), self.at((*rest, position)), const(0, self.compute))

    return b.map(shape, element)


def triangle(keep: str) -> Rule:
    """`tril` (keeps `le`) and `triu` (keeps `ge`): the elements on one side of a diagonal, zeros elsewhere."""

    def rule(b: Builder, self: Value, diagonal: int = 0) -> Value:
        def element(at: Index) -> Expr:
            value = self.at(at)
            return op("where", op(keep, at[-1] - at[-2], diagonal), value, const(0, value.dtype))

        return b.map(self.shape, element)

    return rule


# Elements repeated or moved along -------------------------------------------------------------------------------------


def expand_to(b: Builder, self: Value, shape: Shape) -> Value:
    return self if shape == self.shape else map_view(b, self, shape, lambda at: broadcast(self, at))


def expand(b: Builder, self: Value, size: Sequence[int], implicit: bool = False) -> Value:
    del size, implicit  # given by the declared shape
    return expand_to(b, self, b.out.shape)


def expand_as(b: Builder, self: Value, other: Value) -> Value:
    return expand_to(b, self, other.shape)


def broadcast_tensors(b: Builder, tensors: Sequence[Value]) -> tuple[Value | None, ...]:
    return tuple(None if t is None else expand_to(b, x, t.shape) for x, t in zip(tensors, b.types, strict=True))


def repeat(b: Builder, self: Value, repeats: Sequence[int]) -> Value:
    del repeats  # given by the declared shape

    def source(at: Index) -> list[Expr]:
        return [i % n for i, n in zip(at[len(at) - self.rank :], self.shape, strict=True)]

    return map_view(b, self, b.out.shape, source)


def tile(b: Builder, self: Value, dims: Sequence[int]) -> Value:
    return repeat(b, self, dims)


def repeat_interleave(
    b: Builder, self: Value, repeats: int, dim: int | None = None, output_size: int | None = None
) -> Value:
    """Repeat every element, or every index of `dim`, several times in a row."""
    del output_size
    if dim is None:
        return map_view(b, self, b.out.shape, lambda at: unflatten(at[0] // repeats, self.shape))
    d = one_dim(b, dim, self.rank)
    return map_view(b, self, b.out.shape, lambda at: set_dim(at, d, at[d] // repeats))


def flip(b: Builder, self: Value, dims: Sequence[int]) -> Value:
    axes = _dims(b, tuple(dims), self.rank) if dims else ()
    return map_view(
        b,
        self,
        self.shape,
        lambda at: [n - 1 - i if d in axes else i for d, (i, n) in _indices_with_extents(at, self)],
    )


_dims = dims  # rules have parameters of that name


def _indices_with_extents(at: Index, x: Value) -> enumerate[tuple[Expr, Expr]]:
    return enumerate(zip(at, x.shape, strict=True))


def roll(b: Builder, self: Value, shifts: int | Expr | Sequence[int | Expr], dims: int | Sequence[int] = ()) -> Value:
    """Rotate elements along dimensions; without `dims` in row-major order."""
    shift_amounts = [as_dim(s) for s in (shifts if isinstance(shifts, Sequence) else [shifts])]
    rolled_dims = [dims] if isinstance(dims, int) else list(dims)
    if is_empty(self.shape) or not self.rank:
        return self
    if not rolled_dims:
        count = product(self.shape)
        return map_view(
            b,
            self,
            self.shape,
            lambda at: unflatten(_rolled_index(flat_index(at, self.shape), shift_amounts[0], count), self.shape),
        )
    shift = [as_dim(0)] * self.rank
    for d, s in zip(rolled_dims, shift_amounts, strict=True):
        axis = one_dim(b, d, self.rank)
        shift[axis] = shift[axis] + s
    return map_view(
        b, self, self.shape, lambda at: [_rolled_index(*each) for each in zip(at, shift, self.shape, strict=True)]
    )


def _rolled_index(i: Expr, shift: Expr, extent: Expr) -> Expr:
    offset = op("mod", shift, extent)
    return op("where", op("lt", i, offset), i + (extent - offset), i - offset) if offset is not as_dim(0) else i


# A part replaced ------------------------------------------------------------------------------------------------------


def copy(b: Builder, self: Value, src: Value, non_blocking: bool = False) -> Value:
    del non_blocking
    load = src.at if self.dtype.is_float else src.rounded_at
    return b.map(self.shape, lambda at: cast(load(broadcast(src, at)), self.compute))


def _replace_part(b: Builder, self: Value, src: Value, source_of: Callable[[Index], tuple[Index, Expr]]) -> Value:
    """`self`, except for the elements where `source_of` gives an index into `src` and a condition that holds."""

    def element(at: Index) -> Expr:
        index, inside = source_of(at)
        var_ranges = ranges(at, self.shape)
        index, inside = simplify(index, var_ranges), simplify(inside, var_ranges)
        if self.stored is src.stored:
            return select(inside, stored_element(src, index), stored_element(self, at))
        return select(inside, cast(src.at(index), self.compute), self.at(at))

    return b.map(self.shape, element)


def slice_scatter(
    b: Builder, self: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    del end  # `src` has the slice's size
    d = one_dim(b, dim, self.rank)
    first = start_of(start, self.shape[d])

    def source_of(at: Index) -> tuple[Index, Expr]:
        distance = at[d] - first
        inside = both(op("ge", distance, 0), op("lt", distance // step, src.shape[d]), op("eq", distance % step, 0))
        return set_dim(at, d, distance // step), inside

    return _replace_part(b, self, src, source_of)


def select_scatter(b: Builder, self: Value, src: Value, dim: int, index: int | Expr) -> Value:
    d = one_dim(b, dim, self.rank)
    position = _select_position(index, self.shape[d])
    return _replace_part(b, self, src, lambda at: ((*at[:d], *at[d + 1 :]), op("eq", at[d], position)))


def diagonal_scatter(b: Builder, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    i, j = one_dim(b, dim1, self.rank), one_dim(b, dim2, self.rank)

    def source_of(at: Index) -> tuple[Index, Expr]:
        position = at[i] - max(-offset, 0)
        rest = tuple(x for d, x in enumerate(at) if d not in (i, j))
        return (*rest, position), both(op("ge", position, 0), op("eq", position, at[j] - max(offset, 0)))

    return _replace_part(b, self, src, source_of)


def alias(b: Builder, self: Value) -> Value:
    return self


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("aten.view.default", "aten._unsafe_view.default", "aten.view_copy.default", "aten.reshape.default",
         "aten._reshape_alias.default", "aten.flatten.using_ints", "aten.unflatten.int", "aten.ravel.default",
         "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.unsqueeze.default"), as_declared),
    "aten.view_as.default": like_other, "aten.reshape_as.default": like_other,
    "aten.permute.default": permute, "aten.transpose.int": transpose, "aten.swapaxes.default": transpose,
    "aten.t.default": reverse_order, "aten.numpy_T.default": reverse_order, "aten.mT.default": matrix_transpose,
    "aten.adjoint.default": matrix_transpose, "aten.movedim.int": movedim, "aten.movedim.intlist": movedim,
    "aten.slice.Tensor": slice_, "aten.narrow.default": narrow, "aten.select.int": select_index,
    "aten.split.Tensor": split, "aten.unsafe_split.Tensor": split, "aten.split.sizes": split_sizes_,
    "aten.split_with_sizes.default": split_with_sizes, "aten.unsafe_split_with_sizes.default": split_with_sizes,
    "aten.chunk.default": chunk, "aten.unsafe_chunk.default": chunk,
    "aten.tensor_split.sections": tensor_split, "aten.tensor_split.indices": tensor_split_at,
    "aten.unbind.int": unbind, "aten.unfold.default": unfold,
    "aten.diagonal.default": diagonal, "aten.diag_embed.default": diag_embed,
    "aten.tril.default": triangle("le"), "aten.triu.default": triangle("ge"),
    "aten.expand.default": expand, "aten.expand_as.default": expand_as,
    "aten.broadcast_to.default": lambda b, self, size: expand(b, self, size),
    "aten.broadcast_tensors.default": broadcast_tensors,
    "aten.repeat.default": repeat, "aten.tile.default": tile, "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.flip.default": flip, "aten.roll.default": roll,
    "aten.copy.default": copy, "aten.slice_scatter.default": slice_scatter,
    "aten.select_scatter.default": select_scatter, "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.lift_fresh.default": alias, "aten.lift.default": alias,
    "aten.resolve_conj.default": alias, "aten.resolve_neg.default": alias,
}  # fmt: skip
