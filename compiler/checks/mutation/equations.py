"""Wrong Tensor IR: a program in, the places where an equation may go wrong out."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.checks.mutation import expressions
from compiler.checks.mutation.tree import Edit
from compiler.ir.expr import Const, Op
from compiler.ir.node import Node
from compiler.ir.tensor import ORDERS, Order, Reduce, Scan, Scatter


def edits(node: Node) -> Iterator[Edit]:
    """What may stand in the place of an equation or expression."""
    yield from expressions.edits(node)
    match node:
        case Reduce(over=over):
            yield from expressions.reductions(node)
            for k, axis in enumerate(over):
                less = axis.replace(extent=axis.extent - 1)
                yield "last term dropped", node.replace(over=(*over[:k], less, *over[k + 1 :]))
        case Scan(axes=axes, along=along):
            yield from expressions.reductions(node)
            yield from (("scan along another axis", node.replace(along=a.name)) for a in axes if a.name != along)
        case Order(how=how):
            yield from (("the other order", node.replace(how=other)) for other in ORDERS if other != how)
        case Scatter(_, _, _, op, _, _, _, guard):
            yield "update combines otherwise", node.replace(op="sum" if op == "set" else "set")
            yield from expressions.moved(node, "index", "update")
            if not isinstance(guard, Const):
                yield "guard negated", node.replace(guard=Op("not", (guard,)))


def show(node: Node) -> str:
    return node.name if isinstance(node, Reduce | Scan | Scatter | Order) else expressions.show(node)
