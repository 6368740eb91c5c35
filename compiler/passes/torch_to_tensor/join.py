"""Concatenation and padding: each element is loaded from the part that it lies in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.ir import dtype as dt
from compiler.ir.expr import Expr, both, const, op, select
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, rounded, set_dim
from compiler.passes.torch_to_tensor.pointwise import scalar
from compiler.passes.torch_to_tensor.positions import (
    in_bounds,
    is_empty,
    map_view,
    one_dim,
    ranges,
    stored_element,
    zeros,
)

Move = Callable[[Expr, Expr, int, int], Expr]


def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    shape = b.out.shape
    d = one_dim(b, dim, len(shape))
    parts = [x for x in tensors if x.rank == len(shape) and not is_empty(x.shape)]
    if len(parts) == 1 and parts[0].dtype is b.out.dtype:
        return parts[0]
    element = _element_of_common_type(b, parts)

    def concatenated(at: Index) -> Expr:
        ends: list[Expr] = [parts[0].shape[d]]
        for x in parts[1:]:
            ends.append(ends[-1] + x.shape[d])
        out = element(parts[-1], set_dim(at, d, at[d] - (ends[-1] - parts[-1].shape[d])))
        for x, end in reversed(list(zip(parts[:-1], ends, strict=False))):
            out = select(op("lt", at[d], end), element(x, set_dim(at, d, at[d] - (end - x.shape[d]))), out)
        return out

    return b.map(shape, concatenated) if parts else _no_elements(b)


def stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    shape = b.out.shape
    d = one_dim(b, dim, len(shape))
    element = _element_of_common_type(b, tensors)

    def stacked(at: Index) -> Expr:
        rest = (*at[:d], *at[d + 1 :])
        out = element(tensors[-1], rest)
        for k in reversed(range(len(tensors) - 1)):
            out = select(op("eq", at[d], k), element(tensors[k], rest), out)
        return out

    return _no_elements(b) if is_empty(shape) else b.map(shape, stacked)


def _no_elements(b: Builder) -> Value:
    """A result without elements."""
    declared = b.out
    return b.map(declared.shape, lambda at: const(0, dt.compute(declared.dtype)), "zeros")


def _element_of_common_type(b: Builder, parts: Sequence[Value]) -> Callable[[Value, Index], Expr]:
    """Elements of several tensors in one type: as stored if that is the same for all, else in the result's type."""
    dtype = b.out.dtype
    if len({x.stored for x in parts}) == 1 and all(x.dtype is dtype for x in parts):
        return stored_element
    return lambda x, index: x.at(index) if x.dtype is dtype else rounded(x.at(index), dtype)


# Padding --------------------------------------------------------------------------------------------------------------


def _margins(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """The padding before and after each dimension; torch lists the last dimension first."""
    out = [(0, 0)] * rank
    for k in range(len(pad) // 2):
        out[rank - 1 - k] = (pad[2 * k], pad[2 * k + 1])
    return out


def constant_pad(b: Builder, self: Value, pad: Sequence[int], value: float = 0) -> Value:
    """Negative padding cuts elements off."""
    shape = b.out.shape
    fill = scalar(b, value, self.dtype)
    margins = _margins(pad, self.rank)
    if not any(before or after for before, after in margins):
        return self
    if is_empty(self.shape):
        return b.map(shape, lambda at: fill)

    def element(at: Index) -> Expr:
        var_ranges = ranges(at, shape)
        index = tuple(i - before if before else i for i, (before, _) in zip(at, margins, strict=True))
        inside = both(*(in_bounds(i, n, var_ranges) for i, n in zip(index, self.shape, strict=True)))
        return select(inside, self.at(index), fill)

    return zeros(b, shape, self) if is_empty(shape) else b.map(shape, element)


def _reflect(i: Expr, n: Expr, before: int, after: int) -> Expr:
    return n - 1 - op("abs", n - 1 - op("abs", i - before))


def _replicate(i: Expr, n: Expr, before: int, after: int) -> Expr:
    return op("min", op("max", i - before, 0), n - 1)


def _circular(i: Expr, n: Expr, before: int, after: int) -> Expr:
    """Elements that negative padding cuts off do not wrap around."""
    extent = n + min(before, 0) + min(after, 0)
    i = i - max(before, 0)
    return op("where", op("lt", i, 0), i + extent, op("where", op("lt", i, extent), i, i - extent)) - min(before, 0)


def _pad_from_elements(move: Move) -> Callable[[Builder, Value, Sequence[int]], Value]:
    """Padding by elements of the tensor: `move` maps a position, given the extent and the margins."""

    def rule(b: Builder, self: Value, padding: Sequence[int]) -> Value:
        margins = _margins(padding, self.rank)
        if not any(before or after for before, after in margins):
            return self

        def source(at: Index) -> list[Expr]:
            return [
                move(i, n, before, after) if before or after else i
                for i, n, (before, after) in zip(at, self.shape, margins, strict=True)
            ]

        return map_view(b, self, b.out.shape, source)

    return rule


reflection_pad, replication_pad, circular_pad = map(_pad_from_elements, (_reflect, _replicate, _circular))
_MODES = {"reflect": reflection_pad, "replicate": replication_pad, "circular": circular_pad}


def pad(b: Builder, self: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    if mode == "constant":
        return constant_pad(b, self, pad, value or 0)
    if mode not in _MODES:
        raise b.refuse(f"mode is 'constant', {', '.join(map(repr, _MODES))}")
    return _MODES[mode](b, self, pad)


RULES: dict[str, Rule] = {
    "aten.cat.default": cat, "aten.concat.default": cat, "aten.stack.default": stack,
    "aten.pad.default": pad, "aten.constant_pad_nd.default": constant_pad, "aten._pad_circular.default": circular_pad,
    **{f"aten.reflection_pad{k}d.default": reflection_pad for k in (1, 2, 3)},
    **{f"aten.replication_pad{k}d.default": replication_pad for k in (1, 2, 3)},
}  # fmt: skip
