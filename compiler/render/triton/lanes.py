"""Analysis of a kernel's loops over lanes: their nesting depth, which of them are matmuls, and what they accumulate."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.dtype import f32, i64
from compiler.ir.expr import Expr, Op, Var, names, substitute
from compiler.ir.launches import is_bound
from compiler.ir.statement import Accum, If, Let, Stmt

Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class Dot:
    """A loop over the lanes `k` that accumulates a[m, k] * b[k, n], inside loops over the lanes m and n."""

    k: str
    m: str
    n: str
    a: Expr
    b: Expr
    accumulator: str


def lane_depth(body: Body, excluded: Collection[str]) -> int:
    """The nesting depth of loops over lanes, not counting those in `excluded`."""
    deepest = 0
    for s in body:
        match s:
            case tile.For(body=inner):
                depth = 1 if is_bound(s, "lanes") and s.var not in excluded else 0
                deepest = max(deepest, depth + lane_depth(inner, excluded))
            case If(_, inner):
                deepest = max(deepest, lane_depth(inner, excluded))
    return deepest


def matmul_loops(body: Body, outer: tuple[str, ...] = ()) -> Iterator[Dot]:
    """The loops over lanes that are matmuls."""
    for s in body:
        if isinstance(s, tile.For):
            matmul = match_dot(s, outer) if is_bound(s, "lanes") else None
            if matmul is not None:
                yield matmul
            else:
                yield from matmul_loops(s.body, (*outer, s.var) if is_bound(s, "lanes") else outer)


def match_dot(f: tile.For, outer: Sequence[str]) -> Dot | None:
    """The matmul that a loop over lanes computes with the lanes around it; None if it is none."""
    if f.kind != "reduce" or len(outer) != 2:
        return None
    *lets, last = f.body
    if not isinstance(last, Accum) or last.op != "sum" or not all(isinstance(s, Let) for s in lets):
        return None
    product = last.value
    for s in reversed(lets):
        assert isinstance(s, Let)
        product = substitute(product, {Var(s.name, s.value.dtype): s.value})
    if product.dtype is not f32 or not isinstance(product, Op) or product.name != "mul":
        return None
    m, n = outer
    indices = {m, n, f.var}
    for left, right in (product.args, product.args[::-1]):
        indices_of = names(left) & indices, names(right) & indices
        free_scalars = {v.name for e in (left, right) for v in e.walk() if isinstance(v, Var) and v.dtype is not i64}
        if indices_of == ({m, f.var}, {n, f.var}) and not free_scalars:
            return Dot(f.var, m, n, left, right, last.name)
    return None


def accumulations(body: Body, path: tuple[tile.For, ...]) -> Iterator[tuple[Accum, tuple[tile.For, ...]]]:
    """Accumulations, with the loops over lanes around them."""
    for s in body:
        match s:
            case Accum():
                yield s, path
            case If(_, inner):
                yield from accumulations(inner, path)
            case tile.For(body=inner):
                yield from accumulations(inner, (*path, s) if is_bound(s, "lanes") else path)
