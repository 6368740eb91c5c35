"""Resizing of images: each element reads the nearest input element or interpolates between neighbours."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.dtype import f32
from compiler.ir.expr import Expr
from compiler.ir.index import simplify
from compiler.passes.torch_to_tensor import antialias, upsample_backward
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, set_dim
from compiler.passes.torch_to_tensor.positions import moved, ranges
from compiler.passes.torch_to_tensor.resizing import (
    CUBIC,
    LINEAR,
    Interpolation,
    Scales,
    each_scale,
    lines,
    nearest,
    rule,
)


def _nearest(half: float) -> Callable[[Builder, Value, Scales], Value]:
    def resized(b: Builder, x: Value, scales: Scales) -> Value:
        made = lines(b, x.shape, b.out.shape, scales)
        dtype = x.compute if x.dtype.is_float else f32
        return moved(
            b, x, b.out.shape,
            lambda at: (*at[:2], *(nearest(line, i, dtype, half) for line, i in zip(made, at[2:], strict=True))),
        )  # fmt: skip

    return resized


def _interpolated(how: Interpolation) -> Callable[[Builder, Value, bool, Scales], Value]:
    def resized(b: Builder, x: Value, align_corners: bool, scales: Scales) -> Value:
        if not x.dtype.is_float:
            raise b.refuse("interpolation of integers")
        shape, made = b.out.shape, lines(b, x.shape, b.out.shape, scales)

        def element(at: Index) -> Expr:
            known, taps = ranges(at, shape), []
            for line, i in zip(made, at[2:], strict=True):
                own = how.taps(line, how.position(line, align_corners), i, x.compute)
                taps.append([e for pair in own for e in pair])
            return _weighted(x, at, simplify(tuple(e for own in taps for e in own), known), len(how.offsets))

        return b.map(shape, element)

    return resized


def _weighted(x: Value, at: Index, taps: tuple[Expr, ...], count: int) -> Expr:
    """The weighted sum over the taps of all dimensions, recursively from the first one on.

    `taps` has, for each tap of each dimension, an index and its weight.
    """
    if not taps:
        return x.at(at)
    d = x.rank - len(taps) // (2 * count)
    own, rest = taps[: 2 * count], taps[2 * count :]
    out: Expr | None = None
    for k in range(count):
        part = _weighted(x, set_dim(at, d, own[2 * k]), rest, count) * own[2 * k + 1]
        out = part if out is None else out + part
    assert out is not None, "there is a tap"
    return out


def _rules(name: str, count: int, kind: Callable[..., Value], *options: str) -> dict[str, Rule]:
    """Both overloads with the `options` of a kind: one takes a list of scales, the other one scale per dimension."""
    return {
        f"aten.{name}.vec": rule(kind, "input", ["output_size"], options, "scale_factors"),
        f"aten.{name}.default": rule(kind, "self", ["output_size"], options, *each_scale(count)),
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
