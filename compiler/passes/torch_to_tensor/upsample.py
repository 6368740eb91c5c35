"""Resizing of images: each element reads the nearest input element or interpolates between neighbours."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.dtype import f32
from compiler.ir.expr import Expr
from compiler.ir.index import simplify
from compiler.passes.torch_to_tensor import antialias, upsample_backward
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, set_dim
from compiler.passes.torch_to_tensor.positions import map_view, ranges
from compiler.passes.torch_to_tensor.resizing import (
    CUBIC,
    LINEAR,
    Interpolation,
    Scales,
    nearest_index,
    resized_lines,
    resizing_rule,
    scale_names,
)


def _nearest(offset: float) -> Callable[[Builder, Value, Scales], Value]:
    def resized(b: Builder, x: Value, scales: Scales) -> Value:
        lines = resized_lines(b, x.shape, b.out.shape, scales)
        dtype = x.compute if x.dtype.is_float else f32
        return map_view(
            b, x, b.out.shape,
            lambda at: (*at[:2], *(nearest_index(n, i, dtype, offset) for n, i in zip(lines, at[2:], strict=True))),
        )  # fmt: skip

    return resized


def _interpolated(interpolation: Interpolation) -> Callable[[Builder, Value, bool, Scales], Value]:
    def resized(b: Builder, x: Value, align_corners: bool, scales: Scales) -> Value:
        if not x.dtype.is_float:
            raise b.refuse("interpolation of integers")
        shape, lines = b.out.shape, resized_lines(b, x.shape, b.out.shape, scales)

        def element(at: Index) -> Expr:
            var_ranges, taps = ranges(at, shape), []
            for line, i in zip(lines, at[2:], strict=True):
                line_taps = interpolation.taps(line, interpolation.position(line, align_corners), i, x.compute)
                taps.append([e for pair in line_taps for e in pair])
            return _weighted_sum(
                x,
                at,
                simplify(tuple(e for line_taps in taps for e in line_taps), var_ranges),
                len(interpolation.offsets),
            )

        return b.map(shape, element)

    return resized


def _weighted_sum(x: Value, at: Index, taps: tuple[Expr, ...], count: int) -> Expr:
    """The weighted sum over the taps of all dimensions, recursively from the first one on.

    `taps` has, for each tap of each dimension, an index and its weight.
    """
    if not taps:
        return x.at(at)
    d = x.rank - len(taps) // (2 * count)
    dim_taps, rest = taps[: 2 * count], taps[2 * count :]
    total: Expr | None = None
    for k in range(count):
        term = _weighted_sum(x, set_dim(at, d, dim_taps[2 * k]), rest, count) * dim_taps[2 * k + 1]
        total = term if total is None else total + term
    assert total is not None, "there is a tap"
    return total


def _rules(name: str, count: int, formula: Callable[..., Value], *options: str) -> dict[str, Rule]:
    """Both overloads with the `options` of a kind: one takes a list of scales, the other one scale per dimension."""
    return {
        f"aten.{name}.vec": resizing_rule(formula, "input", ["output_size"], options, "scale_factors"),
        f"aten.{name}.default": resizing_rule(formula, "self", ["output_size"], options, *scale_names(count)),
    }


RULES: dict[str, Rule] = {
    **_rules("upsample_nearest1d", 1, _nearest(0.0)), **_rules("_upsample_nearest_exact1d", 1, _nearest(0.5)),
    **_rules("upsample_nearest2d", 2, _nearest(0.0)), **_rules("_upsample_nearest_exact2d", 2, _nearest(0.5)),
    **_rules("upsample_nearest3d", 3, _nearest(0.0)), **_rules("_upsample_nearest_exact3d", 3, _nearest(0.5)),
    **_rules("upsample_linear1d", 1, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_bilinear2d", 2, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_trilinear3d", 3, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_bicubic2d", 2, _interpolated(CUBIC), "align_corners"),
    **upsample_backward.RULES, **antialias.RULES,
}  # fmt: skip
