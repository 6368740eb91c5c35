"""Wrong Kernel IR: a program in, the places where a statement of a function may go wrong out."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.checks.mutation import expressions
from compiler.checks.mutation.tree import Edit
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Op
from compiler.ir.kernel import (
    Across,
    Address,
    Assign,
    Barrier,
    Builtin,
    Call,
    Declare,
    For,
    Gather,
    If,
    Ramp,
    Store,
    Together,
)
from compiler.ir.kernel_text import show_expr
from compiler.ir.node import Node

_ONE = Const(1, i64)


def edits(node: Node) -> Iterator[Edit]:
    """What may stand in the place of a statement or expression."""
    yield from expressions.edits(node)
    match node:
        case Store(op=op):
            yield "store dropped", ()
            yield "store combines otherwise", node.replace(op="sum" if op == "set" else "set")
            yield from expressions.moved(node, "index", "store")
        case Assign():
            yield "assignment dropped", ()
        case For():
            yield from _loops(node)
        case If(_, then, orelse):
            yield "guard dropped", then
            yield "branches exchanged", node.replace(body=orelse, orelse=then)
        case Call():
            yield "call dropped", ()
        case Address():
            yield from expressions.moved(node, "index", "address")
        case Across():
            yield from expressions.reductions(node)
        case Together(arg=arg):
            yield from expressions.reductions(node)
            yield "own value only", arg
        case Barrier():
            yield "barrier dropped", ()
        case Builtin():
            yield "thread or block shifted", Op("add", (node, _ONE))
        case Ramp(start, step, _):
            yield "ramp stretched", node.replace(step=step + 1)
            yield "ramp shifted", node.replace(start=Op("add", (start, Const(1, start.dtype))))
        case Gather(_, index):
            more = Op("add", (index, index))
            yield "gather doubled", node.replace(index=more)


def _loops(node: For) -> Iterator[Edit]:
    yield "loop dropped", ()
    yield "first iteration dropped", node.replace(start=Op("add", (node.start, Const(node.step, i64))))
    yield "end one sooner", node.replace(stop=Op("sub", (node.stop, _ONE)))
    yield "end one later", node.replace(stop=Op("add", (node.stop, _ONE)))
    yield "wrong lane count", node.replace(step=node.step * 2)
    if node.step > 1:
        yield "wrong lane count", node.replace(step=node.step // 2)
    assigned = {s.name for s in node.walk() if isinstance(s, Assign)}
    for k, s in enumerate(node.body):
        if isinstance(s, Declare) and s.name in assigned:
            yield "accumulator not reset", (s, node.replace(body=(*node.body[:k], *node.body[k + 1 :])))


def show(node: Node) -> str:
    match node:
        case For(var):
            return f"loop {var}"
        case Assign(name) | Store(name) | Address(name) | Gather(name):
            return str(name)
        case Call(function):
            return str(function)
        case Barrier(scope):
            return f"barrier of a {scope}"
        case Expr():
            return expressions.short(show_expr(node))
    return type(node).__name__
