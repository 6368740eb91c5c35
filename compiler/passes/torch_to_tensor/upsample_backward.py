"""Gradients of resizing: each element of the input gathers from the elements of the result that read it.

A gather, unlike a scatter, sums in the same order in every run. The readers of an element are contiguous in each
dimension. For interpolation, dimensions are gathered one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compiler.ir.dtype import f32
from compiler.ir.expr import Expr, both, const, op, select
from compiler.ir.index import simplify
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value
from compiler.passes.torch_to_tensor.positions import ranges, within
from compiler.passes.torch_to_tensor.resizing import (
    CUBIC,
    LINEAR,
    Interpolation,
    Line,
    Scales,
    by_cost,
    each_scale,
    lines,
    nearest,
    nearest_places,
    nearest_position,
    readers,
    rule,
    weighted,
)


def _nearest(half: float) -> Callable[[Builder, Value, Scales], Value]:
    def gathered(b: Builder, grad: Value, scales: Scales) -> Value:
        shape = b.out.shape
        made = lines(b, shape, grad.shape, scales)
        known = [readers(nearest_position(n, half), [(p,) for p in nearest_places(n, f32, half)]) for n in made]
        over = tuple(const(r.count) for r in known)

        def element(at: Index, k: Index) -> Expr:
            span = ranges((*at, *k), (*shape, *over))
            place = simplify(tuple(r.first(p) + i for r, p, i in zip(known, at[2:], k, strict=True)), span)
            reads = [op("eq", nearest(n, i, f32, half), p) for n, i, p in zip(made, place, at[2:], strict=True)]
            inside = [within(i, n, span) for i, n in zip(place, grad.shape[2:], strict=True)]
            return select(simplify(both(*inside, *reads), span), grad.at((*at[:2], *place)), const(0, grad.compute))

        return b.reduce("sum", shape, over, element, "gathered")

    return gathered


def _interpolated(how: Interpolation) -> Callable[[Builder, Value, bool, Scales], Value]:
    def gathered(b: Builder, grad: Value, align_corners: bool, scales: Scales) -> Value:
        made = lines(b, b.out.shape, grad.shape, scales)
        for d in by_cost([(line.wanted, line.extent) for line in made]):
            grad = _along(b, grad, d + 2, made[d], how, align_corners)
        return grad

    return gathered


def _along(b: Builder, grad: Value, d: int, line: Line, how: Interpolation, align_corners: bool) -> Value:
    """The gradient of one dimension's resizing."""
    at = how.position(line, align_corners)
    first = replace(at, offset=at.offset + how.offsets[-1] * at.unit)
    who = readers(first, [how.read(line, at, i) for i in range(line.wanted)])

    def taken(index: Index, tap: Index) -> Expr:
        """The weight that a tap of a reader gives an element."""
        i = op("min", op("max", who.first(index[1]) + index[0], 0), line.wanted - 1)
        out: Expr = const(0, grad.compute)
        for t, (place, weight) in enumerate(how.taps(line, at, i, grad.compute)):
            out = op("where", both(op("eq", tap[0], t), op("eq", place, index[1])), weight, out)
        return out

    shape = const(who.count), const(line.extent)
    weights = b.reduce("sum", shape, (const(len(how.offsets)),), taken, "weight")
    return weighted(b, grad, d, weights, who.first)


def _rules(name: str, count: int, kind: Callable[..., Value], *options: str) -> dict[str, Rule]:
    made = rule(kind, "grad_output", ["output_size", "input_size"], options, *each_scale(count))
    return {f"aten.{name}_backward.default": made}


RULES: dict[str, Rule] = {
    **_rules("upsample_nearest1d", 1, _nearest(0.0)), **_rules("_upsample_nearest_exact1d", 1, _nearest(0.5)),
    **_rules("upsample_nearest2d", 2, _nearest(0.0)), **_rules("_upsample_nearest_exact2d", 2, _nearest(0.5)),
    **_rules("upsample_nearest3d", 3, _nearest(0.0)), **_rules("_upsample_nearest_exact3d", 3, _nearest(0.5)),
    **_rules("upsample_linear1d", 1, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_bilinear2d", 2, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_trilinear3d", 3, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_bicubic2d", 2, _interpolated(CUBIC), "align_corners"),
}  # fmt: skip
