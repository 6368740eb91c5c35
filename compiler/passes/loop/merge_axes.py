"""Merge loops in which a contraction traverses adjacent axes of all its buffers (Loop IR to Loop IR).

The kernel sees these buffers with fewer axes, in the same memory: the pixels of an image over which no window moves are
one axis, like the columns of a matrix. Contiguous runs get longer, and the remainder of the inner loop's last tile is
filled by the next iteration of the outer one. If neither applies, two loops are better: boxes of both fit more sizes.
Adjacency is that of memory, so the rows of images whose pixels have contiguous channels are those of one matrix too.
The rows of a matmul with a matmul inside its factor are merged likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from compiler.analysis import chained_products
from compiler.analysis.nests import bound, perfect, wrap
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var, const, static
from compiler.ir.linear import linear
from compiler.ir.node import Node
from compiler.ir.rewrite import accesses, nodes
from compiler.ir.statement import Kernel, Program, Store, within
from compiler.ir.tensor import Tensor, adjacent, joined, memory_order
from compiler.schedule.contraction_nest import recognise

TILE = 256  # rows of the largest tile


def merge_axes(program: Program) -> Program:
    """Merge as many loops of contractions as their buffers allow."""
    return program.replace(kernels=tuple(map(_merge_in_kernel, program.kernels)))


def _merge_in_kernel(kernel: Kernel) -> Kernel:
    if recognise(kernel) is None and chained_products.recognise(kernel) is None:
        return kernel
    kernel = without_unit_axes(kernel)
    plain, in_order = _merge_all(kernel), _merge_all(_in_memory_order(kernel))
    return in_order if _count_loops(in_order) < _count_loops(plain) else plain


def _merge_all(kernel: Kernel) -> Kernel:
    """The kernel with all mergeable pairs of loops merged."""
    while (
        made := next((m for pair in _loop_pairs(kernel) if (m := merge_loops(kernel, *pair)) is not None), None)
    ) is not None:
        kernel = made
    return kernel


def _loop_pairs(kernel: Kernel) -> Iterator[tuple[loop.For, loop.For]]:
    """Adjacent loops over rows, and adjacent reduction loops."""
    if (found := recognise(kernel)) is not None:
        for loops in (found.rows, found.depth):
            yield from pairwise(loops)
    elif (chain := chained_products.recognise(kernel)) is not None:
        yield from (pair for pair in pairwise(perfect(loop.For, kernel.body)[0]) if pair[1].var == chain.row.var)


def _count_loops(kernel: Kernel) -> int:
    return sum(1 for _ in within(kernel.body, loop.For))


def _in_memory_order(kernel: Kernel) -> Kernel:
    """The kernel with the axes of its buffers in memory order, and its outer loops in that of the stored buffer."""
    kernel = _with_axes(kernel, {p.name: memory_order(p) for p in kernel.params})
    nest, body = perfect(loop.For, kernel.body)
    stored = [n.index for s in body for n in s.walk() if isinstance(n, Store) and n.buffer in kernel.writes]
    places = {e.name: d for index in stored[-1:] for d, e in enumerate(index) if isinstance(e, Var)}
    nest.sort(key=lambda f: places.get(f.var, -1))
    return kernel.replace(body=wrap(nest, body))


def merge_loops(kernel: Kernel, outer: loop.For, inner: loop.For) -> Kernel | None:
    """The kernel with two loops merged; None if they are not two adjacent axes, or one, of all buffers that they index.

    For example, `for i in parallel(4)` around `for j in parallel(8)` with y[7, i, j] = x[i, j] * z[i * 8 + j] becomes
    one loop `for ij in parallel(32)` with y[7, ij] = x[ij] * z[ij].
    """
    pair, merged_var = (Var(outer.var), Var(inner.var)), Var(outer.var + inner.var)
    if outer.body != (inner,) or merged_var.name in bound(kernel) | {p.name for p in kernel.params}:
        return None
    axes: dict[str, int] = {}
    tensors = {p.name: p for p in kernel.params}
    accesses = [n for s in kernel.body for n in s.walk() if isinstance(n, Load | Store)]
    for n in accesses:
        d = next((d for d, adjacent_indices in enumerate(pairwise(n.index)) if adjacent_indices == pair), None)
        if d is not None:
            axes.setdefault(n.buffer, d)
    if any(n.index[axes[n.buffer] :][:2] != pair for n in accesses if n.buffer in axes):
        return None
    if not all(_is_one_memory_axis(tensors[name], d, inner.extent) for name, d in axes.items()):
        return None
    is_contiguous = any(tensors[name].strides[d + 1] is const(1) for name, d in axes.items())
    if not axes or (not is_contiguous and static(inner.extent) % TILE == 0):
        return None

    def one_axis(n: Node) -> Node | None:
        match n:
            case Load() | Store() if n.buffer in axes:
                d = axes[n.buffer]
                return n.replace(index=(*n.index[:d], merged_var, *n.index[d + 2 :]))
            case Load() | Store() if any(_is_flat(e, pair, inner.extent) for e in n.index):
                return n.replace(index=tuple(merged_var if _is_flat(e, pair, inner.extent) else e for e in n.index))
            case loop.For(var, _, kind, (loop.For() as within,)) if var == outer.var:
                return loop.For(merged_var.name, outer.extent * inner.extent, kind, within.body)
        return None

    body = nodes(kernel.body, one_axis)
    if any(n in pair for s in body for n in s.walk() if isinstance(n, Var)):
        return None
    params = tuple(joined(p, axes[p.name]) if p.name in axes else p for p in kernel.params)
    return kernel.replace(body=body, params=params)


def _is_flat(index: Expr, pair: tuple[Expr, Expr], length: Expr) -> bool:
    """Whether an index numbers the iterations of two loops, of which the inner has this length."""
    outer, inner = pair
    return isinstance(length, Const) and linear(index) == ({outer: static(length), inner: 1}, 0)


def without_unit_axes(kernel: Kernel) -> Kernel:
    """The kernel with axes of one element removed from its view of its buffers."""
    return _with_axes(kernel, {p.name: [d for d, n in enumerate(p.shape) if n is not const(1)] for p in kernel.params})


def _with_axes(kernel: Kernel, axes: Mapping[str, Sequence[int]]) -> Kernel:
    """The kernel with its buffers viewed with these axes only, in this order."""

    def select_axes(n: Load | Store) -> Node | None:
        return n.replace(index=tuple(n.index[d] for d in axes[n.buffer])) if n.buffer in axes else None

    params = tuple(
        p.replace(shape=tuple(p.shape[d] for d in axes[p.name]), strides=tuple(p.strides[d] for d in axes[p.name]))
        for p in kernel.params
    )
    return kernel.replace(body=accesses(kernel.body, select_axes), params=params)


def _is_one_memory_axis(t: Tensor, d: int, extent: Expr) -> bool:
    """Whether axes d and d + 1 of a tensor are one axis of memory, the second as long as the loop."""
    return isinstance(extent, Const) and t.shape[d + 1] is extent and adjacent(t, d)
