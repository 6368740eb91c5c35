"""Wrong Loop IR and Tile IR: a program in, the places where a statement may go wrong out."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.checks.mutation import expressions
from compiler.checks.mutation.tree import Change, Edit
from compiler.checks.mutation.tree import changes as changes_by
from compiler.ir import loop, tile
from compiler.ir.dtype import bf16
from compiler.ir.node import Node
from compiler.ir.statement import Accum, If, Init, Let, Program, Store
from compiler.ir.tile import Copy, Mma, Slice


def changes(program: Program) -> list[Change]:
    return changes_by(program, edits, _show)


def edits(node: Node) -> Iterator[Edit]:
    """What may stand in the place of a statement or expression."""
    yield from expressions.edits(node)
    match node:
        case Store(_, index, _, op):
            yield "store dropped", ()
            yield "store combines otherwise", node.replace(op="sum" if op == "set" else "set")
            yield from (("store " + how, node.replace(index=moved)) for how, moved in expressions.moved_index(index))
        case Accum(_, op, value):
            yield "accumulation dropped", ()
            yield from (("reduction changed", node.replace(op=other)) for other in expressions.other_reductions(op))
            if value.dtype.name == "f32":
                yield "rounded to bf16", node.replace(value=expressions.through(value, bf16))
        case If(_, body):
            yield "guarded statements dropped", ()
            yield "guard dropped", body
        case loop.For(_, extent) | tile.For(_, extent):
            yield "last iteration dropped", node.replace(extent=extent - 1)
            yield "loop dropped", ()
        case Slice(_, starts):
            yield from (("slice " + how, node.replace(starts=moved)) for how, moved in expressions.moved_index(starts))
        case Copy():
            yield "copy dropped", ()
        case Mma(_, _, _, _, _, sizes):
            yield "tensor instruction dropped", ()
            for k, n in enumerate(sizes):
                yield "size less one", node.replace(sizes=(*sizes[:k], n - 1, *sizes[k + 1 :]))


def _show(node: Node) -> str:
    match node:
        case loop.For(var) | tile.For(var):
            return f"loop {var}"
        case Let(name) | Init(name) | Accum(name) | Store(name) | Slice(name):
            return str(name)
    return expressions.show(node)
