"""Positions in tensors: index expressions in simplest form, and checks of indices that are computed at run time.

A run-time index out of range fails the program, by `require_in_range` and `wrap_index`; no access leaves the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from compiler.ir.aten import Type
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Load, Var, both, cast, const, dim, names, op, requiring, static
from compiler.ir.index import simplify
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor, aligned_rows, row_major, scaled
from compiler.ir.value_ranges import extent_range
from compiler.passes.torch_to_tensor.builder import Builder, Index, Shape, Value, dims

Source = Callable[[Index], Sequence[Expr | int]]


def ranges(at: Index, shape: Shape) -> dict[str, Range]:
    """The ranges of the variables that index `shape`."""
    return {i.name: extent_range(n) for i, n in zip(at, shape, strict=True) if isinstance(i, Var)}


def is_empty(shape: Shape) -> bool:
    return any(isinstance(n, Const) and n.value == 0 for n in shape)


def is_wide(extent: Expr) -> bool:
    """Whether an extent is not known to be 1."""
    return not (isinstance(extent, Const) and extent.value == 1)


def is_dense(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> bool:
    """Whether the tensor is row-major in some order of its dimensions: no gaps and no overlap."""
    if any(names(e) for e in (*shape, *strides)):
        return _is_dense_symbolic([p for p in zip(strides, shape, strict=True) if is_wide(p[1])])
    pairs = [(static(s), static(n)) for n, s in zip(shape, strides, strict=True)]
    expected = 1
    for stride, extent in sorted(p for p in pairs if p[1] != 1):
        if extent and stride != expected:
            return False
        expected *= extent
    return True


def result_strides(declared: Type) -> tuple[Expr, ...]:
    """The strides of a result with this torch type: its own if they are dense or aligned, else row-major.

    The backend pads rows that are saved for a backward pass to be aligned (`aligned_rows`).
    """
    if is_dense(declared.shape, declared.strides):
        return declared.strides
    dense = row_major(declared.shape)
    padded = aligned_rows(Tensor("", declared.dtype, declared.shape, dense))
    return padded if declared.strides == padded else dense


def _is_dense_symbolic(pairs: list[tuple[Expr, Expr]]) -> bool:
    """`is_dense` for symbolic pairs of stride and extent: each stride is the product of the extents below it."""
    expected: Expr = dim(1)
    while pairs:
        pair = next((p for p in pairs if p[0] is expected), None)
        if pair is None:
            return False
        pairs = [p for p in pairs if p is not pair]
        expected = scaled(expected, pair[1])
    return True


def stored_element(x: Value, index: Iterable[Expr | int]) -> Expr:
    """One element in the type in which it is stored, for values that are only moved."""
    return Load(x.name, tuple(map(dim, index)), x.stored)


def zeros(b: Builder, shape: Shape, like: Value) -> Value:
    return b.map(shape, lambda at: const(0, like.compute), "zeros")


def map_view(b: Builder, x: Value, shape: Shape, source: Source) -> Value:
    """A view of `x` by an index map: element `at` of the result is element `source(at)` of `x`."""
    if is_empty(shape):
        return zeros(b, shape, x)
    return b.map(shape, lambda at: stored_element(x, simplify(tuple(map(dim, source(at))), ranges(at, shape))), "view")


def flat_index(index: Sequence[Expr], shape: Shape) -> Expr:
    """The row-major position of an element."""
    position: Expr = const(0, i64)
    for i, step in zip(index, row_major(shape), strict=True):
        position = position + i * step
    return position


def unflatten(position: Expr, shape: Shape) -> Index:
    """The index of the element at a row-major position; dimensions of size 1 have index 0."""
    out: list[Expr] = []
    wide = [d for d, n in enumerate(shape) if is_wide(n)]
    if shape and not wide:
        return (*(dim(0) for _ in shape[1:]), requiring(dim(0), [position]))
    for d in reversed(range(len(shape))):
        if d not in wide:
            out.append(dim(0))
        elif d == wide[0]:
            out.append(position)
        else:
            out.append(position % shape[d])
            position = position // shape[d]
    return tuple(reversed(out))


def reshaped_index(at: Index, shape: Shape, target: Shape) -> Index:
    """The index in a tensor of shape `target` of the element at `at` in a tensor of `shape`, both row-major."""
    wide = [(i, n) for i, n in zip(at, shape, strict=True) if is_wide(n)]
    if [n for _, n in wide] == [n for n in target if is_wide(n)]:
        wide_indices = iter(i for i, _ in wide)
        return tuple(next(wide_indices) if is_wide(n) else dim(0) for n in target)
    var_ranges = ranges(at, shape)
    position: Expr = simplify(flat_index(at, shape), var_ranges)
    return simplify(unflatten(position, target), var_ranges)


def one_dim(b: Builder, d: int, rank: int) -> int:
    """A dimension as torch gives it, counted from the front; a scalar is treated as a tensor of rank 1."""
    return (*dims(b, d, rank), 0)[0]


def clamp_index(i: Expr, extent: Expr) -> Expr:
    """A run-time index, clamped to the dimension."""
    return op("min", op("max", cast(i, i64), 0), extent - 1)


NO_INDEX = "no index is valid for a dimension of size 0"


class NoElement(ValueError):
    """An element of an empty tensor is needed: eager raises only if it is read, but a kernel would always read."""


def require_in_range(i: Expr, extent: Expr) -> Expr:
    """A run-time index; the program fails if it is out of range."""
    if extent is const(0, extent.dtype):
        raise NoElement(NO_INDEX)
    i = cast(i, i64)
    return op("require", op("and", op("ge", i, 0), op("lt", i, extent)), i)


def wrap_index(i: Expr, extent: Expr) -> Expr:
    """A run-time index, counted from the end if it is negative, checked."""
    i = cast(i, i64)
    return require_in_range(op("where", op("lt", i, 0), i + extent, i), extent)


def in_bounds(position: Expr, extent: Expr, var_ranges: dict[str, Range]) -> Expr:
    """The condition that a position is inside, as far as it is not known to hold."""
    return both(*(simplify(c, var_ranges) for c in (op("ge", position, 0), op("lt", position, extent))))


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that all `shapes` broadcast to."""
    rank = max(map(len, shapes), default=0)
    out: list[Expr] = [dim(1)] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if is_wide(n):
                out[d] = n
    return tuple(out)
