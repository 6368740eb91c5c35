"""Kernels with their symbolic sizes replaced by likely numbers, for heuristics."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Size, sizes_in, static, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Kernel


def with_size_hints(kernel: Kernel, factor: int = 1) -> Kernel:
    """The kernel with odd numbers near the hints of its sizes times `factor`; itself if it has no symbolic sizes.

    An odd number has no power of two as a divisor that other values of the size may lack.
    """
    sizes = sizes_in(kernel)
    if not sizes:
        return kernel
    made: Kernel = substitute(kernel, _table(sizes, factor))  # type: ignore[call-overload]
    return made


def regular(kernel: Kernel) -> bool:
    """Whether all strides are products of sizes: only then do odd hints tell what divides the start of a row."""
    strides = (linear(s) for p in kernel.params for s in p.strides)
    return all(len(terms) + bool(rest) <= 1 for terms, rest in strides)


def number(value: Expr) -> int:
    """The value of a size in the kernel with hints; raises SymbolicError if it depends on more than sizes."""
    return static(substitute(value, _table(sizes_in(value), 1)))


def _table(sizes: Iterable[Size], factor: int) -> dict[Size, Expr]:
    return {s: Const(max(s.hint * factor - 1 + s.hint * factor % 2, s.low | 1), i64) for s in sizes}
