"""Loads and stores of Tile IR that are certainly out of bounds because no predicate guards them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Load, Op, Select, Var, names
from compiler.ir.linear import linear
from compiler.ir.roles import One, Role
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.ir.text import show


@dataclass(frozen=True)
class _Place:
    """The context of an access: loops that run through their whole ranges, and names that conditions test."""

    buffers: Mapping[str, Tensor]
    counts: Mapping[str, int]
    asked: Set[str]
    behind: Mapping[str, Set[str]]  # the names that a named value depends on

    def where(self, cond: Expr) -> _Place:
        used = names(cond)
        return replace(self, asked={*self.asked, *used, *(x for n in used for x in self.behind.get(n, ()))})


def unasked(kernel: Kernel) -> Iterator[str]:
    """A message for each access that no surrounding condition guards and that its loops take out of bounds."""
    yield from _body(kernel.body, _Place({p.name: p for p in kernel.params}, {}, frozenset(), {}))


def _body(body: tuple[Stmt, ...], place: _Place) -> Iterator[str]:
    for s in body:
        match s:
            case tile.For(var, extent, _, _, inner):
                yield from _expr(extent, place)
                known = {**place.counts, var: int(extent.value)} if isinstance(extent, Const) else place.counts
                if extent is not Const(0, extent.dtype):
                    yield from _body(inner, replace(place.where(extent), counts=known))
            case If(cond, inner):
                yield from _expr(cond, place)
                yield from _body(inner, place.where(cond))
            case tile.Stage(body=inner) | One(inner) | Role(body=inner):
                yield from _body(inner, place)
            case tile.Alloc(tensor):
                place = replace(place, buffers={**place.buffers, tensor.name: tensor})
            case Let(name, value):
                yield from _expr(value, place)
                made = {x for n in names(value) for x in (n, *place.behind.get(n, ()))}
                place = replace(place, behind={**place.behind, name: made})
            case Init(_, value) | Accum(_, _, value):
                yield from _expr(value, place)
            case Store(buffer, index, value):
                yield from _access(buffer, index, place)
                for e in (*index, value):
                    yield from _expr(e, place)


def _expr(e: Expr, place: _Place) -> Iterator[str]:
    match e:
        case Const() | Var():
            return
        case Select(cond, then, other):
            yield from _expr(cond, place)
            for x in (then, other):
                yield from _expr(x, place.where(cond))
            return
        case Op("and" | "or", (first, second)):
            yield from _expr(first, place)
            yield from _expr(second, place.where(first))
            return
        case Load(buffer, index):
            yield from _access(buffer, index, place)
    for c in e.children():
        if isinstance(c, Expr):
            yield from _expr(c, place)


def _access(buffer: str, index: tuple[Expr, ...], place: _Place) -> Iterator[str]:
    if buffer not in place.buffers:
        return
    for i, n in zip(index, place.buffers[buffer].shape, strict=True):
        used = names(i)
        if not isinstance(n, Const) or used & place.asked or not used <= place.counts.keys():
            continue
        terms, low = linear(i)
        if all(isinstance(t, Var) for t in terms):  # independent loops: both ends are reached
            ends = [(place.counts[t.name] - 1) * c for t, c in terms.items() if isinstance(t, Var)]
            least, most = low + sum(min(e, 0) for e in ends), low + sum(max(e, 0) for e in ends)
            if least < 0 or most >= int(n.value):
                yield f"{show(i)} goes from {least} to {most} of the {n.value} elements of {buffer}, and nothing asks"
