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


def rank(body: Body, besides: Collection[str]) -> int:
    """The nesting depth of loops over lanes, not counting those in `besides`."""
    deepest = 0
    for s in body:
        match s:
            case tile.For(body=inner):
                own = 1 if is_bound(s, "lanes") and s.var not in besides else 0
                deepest = max(deepest, own + rank(inner, besides))
            case If(_, inner):
                deepest = max(deepest, rank(inner, besides))
    return deepest


def products(body: Body, around: tuple[str, ...] = ()) -> Iterator[Dot]:
    """The loops over lanes that are matmuls."""
    for s in body:
        if isinstance(s, tile.For):
            found = dot(s, around) if is_bound(s, "lanes") else None
            if found is not None:
                yield found
            else:
                yield from products(s.body, (*around, s.var) if is_bound(s, "lanes") else around)


def dot(f: tile.For, around: Sequence[str]) -> Dot | None:
    """The matmul that a loop over lanes computes with the lanes around it; None if it is none."""
    if f.kind != "reduce" or len(around) != 2:
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
    m, n = around
    indices = {m, n, f.var}
    for left, right in (product.args, product.args[::-1]):
        of = names(left) & indices, names(right) & indices
        free = {v.name for e in (left, right) for v in e.walk() if isinstance(v, Var) and v.dtype is not i64}
        if of == ({m, f.var}, {n, f.var}) and not free:
            return Dot(f.var, m, n, left, right, last.name)
    return None


def accumulated(body: Body, path: tuple[tile.For, ...]) -> Iterator[tuple[Accum, tuple[tile.For, ...]]]:
    """Accumulations, with the loops over lanes around them."""
    for s in body:
        match s:
            case Accum():
                yield s, path
            case If(_, inner):
                yield from accumulated(inner, path)
            case tile.For(body=inner):
                yield from accumulated(inner, (*path, s) if is_bound(s, "lanes") else path)
