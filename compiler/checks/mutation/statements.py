"""Mutations of nodes of Tensor, Loop, Tile and Kernel IR."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.checks.mutation import expressions
from compiler.checks.mutation.tree import Edit
from compiler.ir import kernel as k
from compiler.ir import loop, tile
from compiler.ir.dtype import bf16, i64
from compiler.ir.expr import Const, Expr, Op
from compiler.ir.kernel_text import show_expr
from compiler.ir.node import Node
from compiler.ir.statement import Accum, If, Init, Let, Store
from compiler.ir.tensor import ORDERS, Order, Reduce, Scan, Scatter
from compiler.ir.tile import Copy, Mma, Slice

_ONE = Const(1, i64)


def edits(node: Node) -> Iterator[Edit]:
    """Replacements for an equation, statement or expression."""
    yield from expressions.edits(node)
    match node:
        case Store(op=op) | k.Store(op=op):
            yield "store dropped", ()
            yield "store combines otherwise", node.replace(op="sum" if op == "set" else "set")
            yield from expressions.shift_index(node, "index", "store")
        case Accum(value=value):
            yield "accumulation dropped", ()
            yield from expressions.reductions(node)
            if value.dtype.name == "f32":
                yield "rounded to bf16", node.replace(value=expressions.round_through(value, bf16))
        case If(_, body):
            yield "guarded statements dropped", ()
            yield "guard dropped", body
        case loop.For(_, extent) | tile.For(_, extent):
            yield "last iteration dropped", node.replace(extent=extent - 1)
            yield "loop dropped", ()
        case Slice():
            yield from expressions.shift_index(node, "starts", "slice")
        case Mma(_, _, _, _, _, sizes):
            yield "tensor instruction dropped", ()
            for d, n in enumerate(sizes):
                yield "size less one", node.replace(sizes=(*sizes[:d], n - 1, *sizes[d + 1 :]))
        case Copy() | k.Assign() | k.Call() | k.Barrier():
            yield f"{_DROPPED[type(node)]} dropped", ()
        case k.For():
            yield from _loops(node)
        case k.If(_, then, orelse):
            yield "guard dropped", then
            yield "branches exchanged", node.replace(body=orelse, orelse=then)
        case k.Address():
            yield from expressions.shift_index(node, "index", "address")
    yield from _equations(node)
    yield from _values(node)


_DROPPED: dict[type[Node], str] = {Copy: "copy", k.Assign: "assignment", k.Call: "call", k.Barrier: "barrier"}


def _equations(node: Node) -> Iterator[Edit]:
    """Replacements specific to Tensor IR."""
    match node:
        case Reduce(over=over):
            yield from expressions.reductions(node)
            for d, axis in enumerate(over):
                shorter = axis.replace(extent=axis.extent - 1)
                yield "last term dropped", node.replace(over=(*over[:d], shorter, *over[d + 1 :]))
        case Scan(axes=axes, along=along):
            yield from expressions.reductions(node)
            yield from (("scan along another axis", node.replace(along=a.name)) for a in axes if a.name != along)
        case Order(how=order):
            yield from (("the other order", node.replace(how=other)) for other in ORDERS if other != order)
        case Scatter(_, _, _, op, _, _, _, guard):
            yield "update combines otherwise", node.replace(op="sum" if op == "set" else "set")
            yield from expressions.shift_index(node, "index", "update")
            if not isinstance(guard, Const):
                yield "guard negated", node.replace(guard=Op("not", (guard,)))


def _values(node: Node) -> Iterator[Edit]:
    """Replacements for expressions specific to Kernel IR."""
    match node:
        case k.Across():
            yield from expressions.reductions(node)
        case k.Together(arg=arg):
            yield from expressions.reductions(node)
            yield "own value only", arg
        case k.Builtin():
            yield "thread or block shifted", Op("add", (node, _ONE))
        case k.Ramp(start, step, _):
            yield "ramp stretched", node.replace(step=step + 1)
            yield "ramp shifted", node.replace(start=Op("add", (start, Const(1, start.dtype))))
        case k.Gather(_, index):
            yield "gather doubled", node.replace(index=Op("add", (index, index)))


def _loops(node: k.For) -> Iterator[Edit]:
    yield "loop dropped", ()
    yield "first iteration dropped", node.replace(start=Op("add", (node.start, Const(node.step, i64))))
    yield "end one sooner", node.replace(stop=Op("sub", (node.stop, _ONE)))
    yield "end one later", node.replace(stop=Op("add", (node.stop, _ONE)))
    yield "wrong lane count", node.replace(step=node.step * 2)
    if node.step > 1:
        yield "wrong lane count", node.replace(step=node.step // 2)
    assigned = {s.name for s in node.walk() if isinstance(s, k.Assign)}
    for n, s in enumerate(node.body):
        if isinstance(s, k.Declare) and s.name in assigned:
            yield "accumulator not reset", (s, node.replace(body=(*node.body[:n], *node.body[n + 1 :])))


def show(node: Node) -> str:
    """A short description of a node."""
    match node:
        case loop.For(var) | tile.For(var) | k.For(var):
            return f"loop {var}"
        case Reduce(name) | Scan(name) | Scatter(name) | Order(name) | Let(name) | Init(name) | Accum(name):
            return str(name)
        case Store(name) | Slice(name) | k.Assign(name) | k.Store(name) | k.Address(name) | k.Gather(name):
            return str(name)
        case k.Call(function):
            return str(function)
        case k.Barrier(scope):
            return f"barrier of a {scope}"
        case Expr():
            text = show_expr(node)
            return text if len(text) <= 60 else text[:57] + "..."
    return type(node).__name__
