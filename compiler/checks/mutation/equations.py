"""Wrong Tensor IR: a program in, the places where an equation may go wrong out."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.checks.mutation import expressions
from compiler.checks.mutation.tree import Change, Edit
from compiler.checks.mutation.tree import changes as changes_by
from compiler.ir.expr import Const, Op
from compiler.ir.node import Node
from compiler.ir.tensor import Program, Reduce, Scan, Scatter


def changes(program: Program) -> list[Change]:
    return changes_by(program, edits, _show)


def edits(node: Node) -> Iterator[Edit]:
    """What may stand in the place of an equation or expression."""
    yield from expressions.edits(node)
    match node:
        case Reduce(_, _, op, over, _):
            yield from (("reduction changed", node.replace(op=other)) for other in expressions.other_reductions(op))
            for k, axis in enumerate(over):
                less = axis.replace(extent=axis.extent - 1)
                yield "last term dropped", node.replace(over=(*over[:k], less, *over[k + 1 :]))
        case Scan(_, axes, op, along, _):
            yield from (("reduction changed", node.replace(op=other)) for other in expressions.other_reductions(op))
            yield from (("scan along another axis", node.replace(along=a.name)) for a in axes if a.name != along)
        case Scatter(_, _, _, op, _, index, _, guard):
            yield "update combines otherwise", node.replace(op="sum" if op == "set" else "set")
            yield from (("update " + how, node.replace(index=moved)) for how, moved in expressions.moved_index(index))
            if not isinstance(guard, Const):
                yield "guard negated", node.replace(guard=Op("not", (guard,)))


def _show(node: Node) -> str:
    return node.name if isinstance(node, Reduce | Scan | Scatter) else expressions.show(node)
