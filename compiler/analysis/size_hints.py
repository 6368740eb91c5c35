"""A kernel with symbolic sizes in; the kernel with numbers that they are likely to be, for heuristics, out."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Size, sizes_in, static, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Kernel


def with_size_hints(kernel: Kernel, factor: int = 1) -> Kernel:
    """The kernel with odd numbers near the hints of its sizes, or so many times as large; itself if it has none.

    Nothing seems to divide an odd number that does not divide every size.
    """
    sizes = sizes_in(kernel)
    if not sizes:
        return kernel
    made: Kernel = substitute(kernel, _table(sizes, factor))  # type: ignore[call-overload]
    return made


def regular(kernel: Kernel) -> bool:
    """Rows of all buffers begin at products of sizes: only of those do odd hints tell what divides them."""
    strides = (linear(s) for p in kernel.params for s in p.strides)
    return all(len(terms) + bool(rest) <= 1 for terms, rest in strides)


def number(value: Expr) -> int:
    """What a size is in the kernel with hints; raises SymbolicError for what depends on more than sizes."""
    return static(substitute(value, _table(sizes_in(value), 1)))


def _table(sizes: Iterable[Size], factor: int) -> dict[Size, Expr]:
    return {s: Const(max(s.hint * factor - 1 + s.hint * factor % 2, s.low | 1), i64) for s in sizes}
