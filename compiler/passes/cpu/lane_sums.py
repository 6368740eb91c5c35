"""Sums over the lanes of vectors: an accumulator for each of the vectors that run side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir import kernel as k
from compiler.ir.expr import COMBINE, Expr, Var, identity, op
from compiler.passes.cpu.scope import Scope


def declarations(outer: Mapping[str, str], sums: Sequence[Mapping[str, Var]], width: int, scope: Scope) -> list[k.Stmt]:
    """The accumulators `sums` of the scalars `outer`, which map names to operations, at the operations' identities."""
    return [
        k.Declare(lanes.name, k.Broadcast(identity(outer[name], scope.values[name].dtype), width))
        for vectors in sums
        for name, lanes in vectors.items()
    ]


def combine(outer: Mapping[str, str], sums: Sequence[Mapping[str, Var]], scope: Scope) -> list[k.Stmt]:
    """Combine the lanes of all accumulators into the scalars, as a tree."""
    out: list[k.Stmt] = []
    for name, how in outer.items():
        total = scope.values[name]
        assert isinstance(total, Var)
        parts: list[Expr] = [vectors[name] for vectors in sums]
        while len(parts) > 1:
            parts = [
                op(COMBINE[how], *parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)
            ]
        out.append(k.Assign(total.name, op(COMBINE[how], total, k.Across(how, parts[0]))))
    return out
