"""Contractions as matmuls that sum over boxes of buffers, such as the weight gradients of convolutions.

Each position of the convolution's kernel is a matmul of channels by channels whose sum runs over all pixels of all
images. A tile holds a box of pixels with their channels side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from compiler.analysis.nests import loop_ranges, size
from compiler.ir import loop
from compiler.ir.expr import Expr
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor
from compiler.schedule.contraction_nest import Contraction, sides
from compiler.schedule.gpu import conv, permuted_copy
from compiler.schedule.gpu.box_shapes import count, reduction_box
from compiler.schedule.gpu.matmul_axes import PIECES, ROW, Axis, Factor, MatmulAxes, axis
from compiler.schedule.steps import Permute

ROWS = (1, 2)  # sizes of boxes: at most so many rows of all banks


def candidate_matmuls(c: Contraction, tensors: Mapping[str, Tensor]) -> Iterator[MatmulAxes]:
    """All such matmuls: either factor may be left, any loop of a side its rows; other loops are the batch."""
    if len(c.depth) < 2:
        return
    ranges = loop_ranges(c.loops)
    for (left, rows), (right, columns) in sides(c):
        for row, column in itertools.product(rows, columns):
            for (a, first), (b, second) in itertools.product(
                _boxed_factors(left, right, row, c.depth, tensors, ranges),
                _boxed_factors(right, left, column, c.depth, tensors, ranges),
            ):
                m, n = (conv.boxed_axis((f,), x, tensors) for f, x in ((row, left), (column, right)))
                result, across = conv.result_of(c, m, n, tensors)
                made = MatmulAxes(
                    c, m, n, axis(c.depth), tuple(f for f in c.rows if f not in (row, column)), a, b, across, result,
                    *permuted_copy.preparation((first, second), tensors),
                    conv.loaded_bytes(left, right, tensors=tensors),
                )  # fmt: skip
                short, bits = ROW // max(a.operand.bytes, b.operand.bytes), not (a.even and b.even)
                yield from (replace(made, k=k) for k in _depth_axes(c.depth, (left, right), short, bits, tensors))


def _boxed_factors(
    value: Expr, other: Expr, own: loop.For, depth: Sequence[loop.For], tensors: Mapping[str, Tensor],
    ranges: Mapping[str, Range],
) -> Iterator[tuple[Factor, Permute | None]]:  # fmt: skip
    """A factor, or its copy, if it is contiguous along its own loop, with reduction loops through a box."""
    for factor, copy in conv.factor_variants(value, other, depth, own, tensors, ranges):
        if factor.order == ("own", "k") and factor.operand.piece in PIECES:
            yield replace(factor, order=("k", "own")), copy


def _depth_axes(
    depth: Sequence[loop.For], factors: Sequence[Expr], row: int, bits: bool, tensors: Mapping[str, Tensor]
) -> Iterator[Axis]:
    """The reduction loops in boxes that divide them evenly, unless both factors are zero beyond the loop's end."""
    factor_loads = [x for f in factors if (x := conv.guarded_load(f, tensors, {f.var for f in depth})) is not None]
    must_divide = tuple(
        any(conv.extends_past(f, x.index, tensors[x.buffer].shape) for x in factor_loads) for f in depth
    )
    extents, step = tuple(size(f) for f in depth), max(conv.max_index_step(x, depth) for x in factor_loads)
    for lengths in dict.fromkeys(reduction_box(extents, must_divide, row * n, step, bits) for n in ROWS):
        if lengths:
            k = axis(depth)
            k.boxed, k.box, k.size = True, lengths, count(extents, lengths) * math.prod(lengths)
            yield k
