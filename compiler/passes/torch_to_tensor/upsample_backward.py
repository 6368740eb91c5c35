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
from compiler.passes.torch_to_tensor.positions import in_bounds, ranges
from compiler.passes.torch_to_tensor.resizing import (
    CUBIC,
    LINEAR,
    Interpolation,
    Line,
    Scales,
    cost_order,
    nearest_index,
    nearest_position,
    nearest_positions,
    readers,
    resized_lines,
    resizing_rule,
    scale_names,
    weighted_sum,
)


def _nearest(offset: float) -> Callable[[Builder, Value, Scales], Value]:
    def gathered(b: Builder, grad: Value, scales: Scales) -> Value:
        shape = b.out.shape
        lines = resized_lines(b, shape, grad.shape, scales)
        readers_of = [
            readers(nearest_position(n, offset), [(p,) for p in nearest_positions(n, f32, offset)]) for n in lines
        ]
        over = tuple(const(r.count) for r in readers_of)

        def element(at: Index, k: Index) -> Expr:
            var_ranges = ranges((*at, *k), (*shape, *over))
            positions = simplify(
                tuple(r.first(p) + i for r, p, i in zip(readers_of, at[2:], k, strict=True)), var_ranges
            )
            is_read = [
                op("eq", nearest_index(n, i, f32, offset), p) for n, i, p in zip(lines, positions, at[2:], strict=True)
            ]
            inside = [in_bounds(i, n, var_ranges) for i, n in zip(positions, grad.shape[2:], strict=True)]
            return select(
                simplify(both(*inside, *is_read), var_ranges), grad.at((*at[:2], *positions)), const(0, grad.compute)
            )

        return b.reduce("sum", shape, over, element, "gathered")

    return gathered


def _interpolated(interpolation: Interpolation) -> Callable[[Builder, Value, bool, Scales], Value]:
    def gathered(b: Builder, grad: Value, align_corners: bool, scales: Scales) -> Value:
        lines = resized_lines(b, b.out.shape, grad.shape, scales)
        for d in cost_order([(line.result_extent, line.extent) for line in lines]):
            grad = _gather_dim(b, grad, d + 2, lines[d], interpolation, align_corners)
        return grad

    return gathered


def _gather_dim(
    b: Builder, grad: Value, d: int, line: Line, interpolation: Interpolation, align_corners: bool
) -> Value:
    """The gradient of one dimension's resizing."""
    at = interpolation.position(line, align_corners)
    first = replace(at, offset=at.offset + interpolation.offsets[-1] * at.unit)
    line_readers = readers(first, [interpolation.inputs_read(line, at, i) for i in range(line.result_extent)])

    def tap_weight(index: Index, tap: Index) -> Expr:
        """The weight that a tap of a reader gives an element."""
        i = op("min", op("max", line_readers.first(index[1]) + index[0], 0), line.result_extent - 1)
        out: Expr = const(0, grad.compute)
        for t, (position, weight) in enumerate(interpolation.taps(line, at, i, grad.compute)):
            out = op("where", both(op("eq", tap[0], t), op("eq", position, index[1])), weight, out)
        return out

    shape = const(line_readers.count), const(line.extent)
    weights = b.reduce("sum", shape, (const(len(interpolation.offsets)),), tap_weight, "weight")
    return weighted_sum(b, grad, d, weights, line_readers.first)


def _rules(name: str, count: int, formula: Callable[..., Value], *options: str) -> dict[str, Rule]:
    backward_rule = resizing_rule(formula, "grad_output", ["output_size", "input_size"], options, *scale_names(count))
    return {f"aten.{name}_backward.default": backward_rule}


RULES: dict[str, Rule] = {
    **_rules("upsample_nearest1d", 1, _nearest(0.0)), **_rules("_upsample_nearest_exact1d", 1, _nearest(0.5)),
    **_rules("upsample_nearest2d", 2, _nearest(0.0)), **_rules("_upsample_nearest_exact2d", 2, _nearest(0.5)),
    **_rules("upsample_nearest3d", 3, _nearest(0.0)), **_rules("_upsample_nearest_exact3d", 3, _nearest(0.5)),
    **_rules("upsample_linear1d", 1, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_bilinear2d", 2, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_trilinear3d", 3, _interpolated(LINEAR), "align_corners"),
    **_rules("upsample_bicubic2d", 2, _interpolated(CUBIC), "align_corners"),
}  # fmt: skip
