"""The texts of calls that gather and scatter: positions are given by index tensors or masks."""

from __future__ import annotations

import torch

from conformance.fuzz.drawing import Drawing, overlaps, require
from conformance.fuzz.texts import positive_axis


def scatter_reduce(d: Drawing) -> str:
    """`scatter_reduce` by sum, maximum, minimum or product, also with duplicate indices."""
    x = d.number(1)
    axis, shape = positive_axis(d), list(d.shape)
    below, shape[axis] = shape[axis], d.among(1, 3, 8, shape[axis])
    reduction = d.among("sum", "amax", "amin", "prod")
    included = d.among("", ", include_self=False")
    return f"{x}.scatter_reduce({axis}, {d.indices(below, *shape)}, {d.fresh(*shape)}, '{reduction}'{included})"


def scatter_mean(d: Drawing) -> str:
    """`scatter_reduce` by mean."""
    x = d.real(1)
    axis, shape = positive_axis(d), list(d.shape)
    below, shape[axis] = shape[axis], d.among(1, 3, 8, shape[axis])
    return f"{x}.scatter_reduce({axis}, {d.indices(below, *shape)}, {d.fresh(*shape)}, 'mean')"


def index_put(d: Drawing) -> str:
    """`index_put` of rows that accumulates, also with duplicate indices."""
    x = d.number(1)
    n = d.among(1, 3, 8)
    index = d.indices(d.size(0), n)
    return f"{x}.index_put(({index},), {d.fresh(n, *d.shape[1:])}, accumulate=True)"


def index_fill(d: Drawing) -> str:
    """`index_fill` with 0 or 1."""
    x = d.tensor(1)
    axis = d.axis()
    return f"{x}.index_fill({axis}, {d.indices(d.size(axis), d.among(1, 3))}, {d.among(0, 1)})"


def index_copy(d: Drawing) -> str:
    """`index_copy` of rows without duplicate indices."""
    x = d.tensor(1)
    n = d.up_to(1, d.size(0))
    return f"{x}.index_copy(0, {d.indices(d.size(0), n, unique_along=0)}, {d.fresh(n, *d.shape[1:])})"


def take_along_dim(d: Drawing) -> str:
    """`take` from the flattened tensor, or `take_along_dim`."""
    x = d.number(1)
    if d.chance(0.3):
        return f"{x}.take({d.indices(d.first.eager.numel(), 2, d.among(1, 4))})"
    axis = d.axis()
    return f"torch.take_along_dim({x}, {d.indices(d.size(axis), *d.shape)}, {axis})"


def view_scatter(d: Drawing, call: str) -> str:
    """`slice_scatter`, `select_scatter` or `diagonal_scatter`, by the first word of the name."""
    x = d.tensor(2 if call == "diagonal" else 1)
    # Eager clones the whole storage with its strides, so a write to one element could change others.
    require(not overlaps(d.first.eager) and not d.first.eager.storage_offset())
    if call == "diagonal":
        return f"torch.diagonal_scatter({x}, {d.fresh(*d.shape[2:], min(d.shape[:2]))})"
    axis, shape = positive_axis(d), list(d.shape)
    n = shape.pop(axis)
    if call == "select":
        return f"torch.select_scatter({x}, {d.fresh(*shape)}, {axis}, {d.up_to(-n, n - 1)})"
    start, step = d.up_to(0, n - 1), d.among(1, 1, 2)
    shape.insert(axis, len(range(start, n, step)))
    return f"torch.slice_scatter({x}, {d.fresh(*shape)}, {axis}, {start}, None, {step})"


def searchsorted(d: Drawing) -> str:
    """`bucketize` or `searchsorted`."""
    x = d.number()
    right = d.among("", ", right=True")
    limits = d.drawn_as("sorted", d.among(1, 4, 9))
    return d.among(f"torch.bucketize({x}, {limits}{right})", f"torch.searchsorted({limits}, {x}{right})")


def masked_scatter(d: Drawing, call: str) -> str:
    """`masked_scatter`, or its in-place version, in which eager would read elements of its own memory after writing."""
    x = d.number()
    if not call.endswith("_"):
        return f"{x}.{call}({d.mask()}, {d.same()})"
    shape, memory = torch.Size(d.shape), d.first.eager.untyped_storage().data_ptr()
    source = d.matching(lambda y: y.shape == shape and y.untyped_storage().data_ptr() != memory, *shape)
    return f"{x}.{call}({d.mask()}, {source})"


def one_hot(d: Drawing) -> str:
    """`one_hot` of new indices."""
    x = d.tensor(1)
    n = d.among(1, 3, 8)
    return f"F.one_hot({d.indices(n, d.size(0))}, {n}).to({x}.dtype)"


def assign_rows(d: Drawing) -> str:
    """Assignment of a number or of rows to distinct indices."""
    x = d.tensor(1)
    n = d.up_to(1, d.size(0))
    index = d.indices(d.size(0), n, unique_along=0)
    return f"{x}[{index}] = {d.among(0, 1) if d.chance(0.5) else d.fresh(n, *d.shape[1:])}"


def assign_where(d: Drawing) -> str:
    """Assignment of a number where a comparison of the tensor itself holds, which needs exact values."""
    x = d.number(1)
    require(d.first.exact)
    return f"{x}[{x} {d.among('> 0', '== 1', '<= -1')}] = {d.among(0, 1, -2)}"


def scatter_in_place(d: Drawing) -> str:
    """`scatter_add_` with any indices, or `scatter_` of a number with distinct ones."""
    x = d.number(1)
    axis, shape = positive_axis(d), list(d.shape)
    below, shape[axis] = shape[axis], d.among(1, 3)
    if d.chance(0.5):
        return f"{x}.scatter_add_({axis}, {d.indices(below, *shape)}, {d.fresh(*shape)})"
    require(shape[axis] <= below)
    return f"{x}.scatter_({axis}, {d.indices(below, *shape, unique_along=axis)}, {d.among(0, 1)})"


def embedding_bag(d: Drawing) -> str:
    """`embedding_bag` by sum, mean or maximum."""
    x = d.real(2, most=2)
    return f"F.embedding_bag({d.indices(d.size(0), 3, d.among(1, 4))}, {x}, mode='{d.among('sum', 'mean', 'max')}')"
