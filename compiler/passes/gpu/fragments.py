"""Fragments: tiles in registers that are distributed over threads, and the places of a thread's registers in them.

Loops over tiles that are used together traverse the registers of the largest one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Expr, Load, const
from compiler.ir.index import simplify
from compiler.ir.launches import is_bound
from compiler.ir.layout import Digit, Fragment
from compiler.ir.statement import Kernel, Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import Ranges

WARP = 32


def rows_of(fragment: Fragment) -> Fragment:
    """A fragment with one value per row, held by all threads with a part of the row."""
    return Fragment(
        (fragment.shape[0], 1),
        tuple(Digit(d.extent, d.row, 0) for d in fragment.threads),
        tuple(d for d in fragment.registers if d.row),
    )


def columns_of(fragment: Fragment) -> Fragment:
    """A fragment with one value per column."""
    return Fragment(
        (1, fragment.shape[1]),
        tuple(Digit(d.extent, 0, d.column) for d in fragment.threads),
        tuple(d for d in fragment.registers if d.column),
    )


def part_origin(fragment: Fragment, lane: Expr, warp: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    """The row and column at which a thread's part begins."""
    row: Expr = const(0)
    column: Expr = const(0)
    before = 1
    for d in fragment.threads:
        number, weight = (lane, before) if before < WARP else (warp, before // WARP)
        digit = simplify(number // weight % d.extent, ranges, index=True)
        row, column = row + digit * d.row, column + digit * d.column
        before *= d.extent
    return simplify(row, ranges, index=True), simplify(column, ranges, index=True)


def register(fragment: Fragment, row: Expr, column: Expr, ranges: Ranges) -> Expr:
    """The register at a distance from the beginning of a thread's part, which must be one of its registers."""
    out: Expr = const(0)
    weight = 1
    for d in fragment.registers:
        at, step = (row, d.row) if d.row else (column, d.column)
        out = out + at // step % d.extent * weight
        weight *= d.extent
    return simplify(out, ranges, index=True)


def same_distribution(a: Fragment, b: Fragment) -> bool:
    """Whether threads hold the same rows and columns of both, disregarding an axis of which `b` has but one."""
    rows = b.shape[0] == 1 or [(d.extent, d.row) for d in a.threads] == [(d.extent, d.row) for d in b.threads]
    columns = b.shape[1] == 1 or [(d.extent, d.column) for d in a.threads] == [(d.extent, d.column) for d in b.threads]
    return rows and columns


# ---- loops over fragments


@dataclass(frozen=True)
class Nest:
    """A loop over the rows of tiles, distributed over threads, and the loops over their columns inside."""

    outer: tile.For
    inner: tuple[tile.For, ...]


def nests(kernel: Kernel) -> list[Nest]:
    """All outermost loops over lanes."""
    out: list[Nest] = []

    def go(s: Stmt) -> None:
        if is_bound(s, "lanes"):
            out.append(Nest(s, tuple(n for n in within(s.body) if is_bound(n, "lanes"))))
            return
        for c in s.children():
            if isinstance(c, Stmt):
                go(c)

    for s in kernel.body:
        go(s)
    return out


def tiles_used(nest: Nest, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Expr, ...]]:
    """The tiles that a nest accesses, each with one of its indices."""
    return {n.buffer: n.index for n in nest.outer.walk() if isinstance(n, Load | Store) and n.buffer in tensors}


def fragment_of_nest(nest: Nest, tensors: Mapping[str, Tensor], found: Mapping[str, Fragment]) -> Fragment | None:
    """The fragment whose registers a nest traverses: the largest of its tiles; None if none is a fragment."""
    touched = tiles_used(nest, tensors)
    known = [found[name] for name in touched if name in found]
    whole = [x for x in known if 1 not in x.shape] or known
    return max(whole, key=lambda x: (math.prod(x.shape), x.count), default=None)
