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
class _Context:
    """The context of an access: loops that run through their whole ranges, and names that conditions test."""

    buffers: Mapping[str, Tensor]
    counts: Mapping[str, int]
    tested: Set[str]
    sources: Mapping[str, Set[str]]  # the names that a named value depends on

    def where(self, cond: Expr) -> _Context:
        used = names(cond)
        return replace(self, tested={*self.tested, *used, *(x for n in used for x in self.sources.get(n, ()))})


def unasked(kernel: Kernel) -> Iterator[str]:
    """A message for each access that no surrounding condition guards and that its loops take out of bounds."""
    yield from _body(kernel.body, _Context({p.name: p for p in kernel.params}, {}, frozenset(), {}))


def _body(body: tuple[Stmt, ...], context: _Context) -> Iterator[str]:
    for s in body:
        match s:
            case tile.For(var, extent, _, _, inner):
                yield from _expr(extent, context)
                known = {**context.counts, var: int(extent.value)} if isinstance(extent, Const) else context.counts
                if extent is not Const(0, extent.dtype):
                    yield from _body(inner, replace(context.where(extent), counts=known))
            case If(cond, inner):
                yield from _expr(cond, context)
                yield from _body(inner, context.where(cond))
            case tile.Stage(body=inner) | One(inner) | Role(body=inner):
                yield from _body(inner, context)
            case tile.Alloc(tensor):
                context = replace(context, buffers={**context.buffers, tensor.name: tensor})
            case Let(name, value):
                yield from _expr(value, context)
                made = {x for n in names(value) for x in (n, *context.sources.get(n, ()))}
                context = replace(context, sources={**context.sources, name: made})
            case Init(_, value) | Accum(_, _, value):
                yield from _expr(value, context)
            case Store(buffer, index, value):
                yield from _access(buffer, index, context)
                for e in (*index, value):
                    yield from _expr(e, context)


def _expr(e: Expr, context: _Context) -> Iterator[str]:
    match e:
        case Const() | Var():
            return
        case Select(cond, then, other):
            yield from _expr(cond, context)
            for x in (then, other):
                yield from _expr(x, context.where(cond))
            return
        case Op("and" | "or", (first, second)):
            yield from _expr(first, context)
            yield from _expr(second, context.where(first))
            return
        case Load(buffer, index):
            yield from _access(buffer, index, context)
    for c in e.children():
        if isinstance(c, Expr):
            yield from _expr(c, context)


def _access(buffer: str, index: tuple[Expr, ...], context: _Context) -> Iterator[str]:
    if buffer not in context.buffers:
        return
    for i, n in zip(index, context.buffers[buffer].shape, strict=True):
        used = names(i)
        if not isinstance(n, Const) or used & context.tested or not used <= context.counts.keys():
            continue
        terms, low = linear(i)
        if all(isinstance(t, Var) for t in terms):  # independent loops: both ends are reached
            ends = [(context.counts[t.name] - 1) * c for t, c in terms.items() if isinstance(t, Var)]
            least, most = low + sum(min(e, 0) for e in ends), low + sum(max(e, 0) for e in ends)
            if least < 0 or most >= int(n.value):
                yield f"{show(i)} goes from {least} to {most} of the {n.value} elements of {buffer}, and nothing asks"
