"""Predicates on statements, fragments and buffers for the lowering to threads."""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import static
from compiler.ir.layout import Fragment
from compiler.ir.statement import If, Stmt
from compiler.ir.tensor import Tensor
from compiler.passes.gpu import block_groups

Body = list[k.Stmt]


def exchanges(body: Body) -> bool:
    """Warps pass each other values through memory that the next iteration uses again."""
    return any(isinstance(n, k.Together) and n.scratch for s in body for n in s.walk())


def is_compound(s: Stmt) -> bool:
    """A statement of statements, among which barriers are placed as well."""
    return isinstance(s, If | block_groups.GroupBarrier) or (
        isinstance(s, tile.For) and s.bind.level not in ("lanes", "warps")
    )


def same_distribution(a: Fragment, b: Fragment) -> bool:
    """Threads have parts of the same rows, and of the same columns, unless a tile has but one."""
    rows = b.shape[0] == 1 or [(d.extent, d.row) for d in a.threads] == [(d.extent, d.row) for d in b.threads]
    columns = b.shape[1] == 1 or [(d.extent, d.column) for d in a.threads] == [(d.extent, d.column) for d in b.threads]
    return rows and columns


def span(t: Tensor) -> int:
    """Elements from the first of a buffer to its last."""
    far = [(static(n, f"the size of {t.name}") - 1) * static(by) for n, by in zip(t.shape, t.strides, strict=True)]
    return max(sum(far) + 1, 1)
