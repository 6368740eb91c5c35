"""Wrong Loop IR and Tile IR: a program in, the places where a statement may go wrong out."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.checks.mutation import expressions
from compiler.checks.mutation.tree import Edit
from compiler.ir import loop, tile
from compiler.ir.dtype import bf16
from compiler.ir.node import Node
from compiler.ir.statement import Accum, If, Init, Let, Store
from compiler.ir.tile import Copy, Mma, Slice


def edits(node: Node) -> Iterator[Edit]:
    """What may stand in the place of a statement or expression."""
    yield from expressions.edits(node)
    match node:
        case Store(op=op):
            yield "store dropped", ()
            yield "store combines otherwise", node.replace(op="sum" if op == "set" else "set")
            yield from expressions.moved(node, "index", "store")
        case Accum(value=value):
            yield "accumulation dropped", ()
            yield from expressions.reductions(node)
            if value.dtype.name == "f32":
                yield "rounded to bf16", node.replace(value=expressions.through(value, bf16))
        case If(_, body):
            yield "guarded statements dropped", ()
            yield "guard dropped", body
        case loop.For(_, extent) | tile.For(_, extent):
            yield "last iteration dropped", node.replace(extent=extent - 1)
            yield "loop dropped", ()
        case Slice():
            yield from expressions.moved(node, "starts", "slice")
        case Copy():
            yield "copy dropped", ()
        case Mma(_, _, _, _, _, sizes):
            yield "tensor instruction dropped", ()
            for k, n in enumerate(sizes):
                yield "size less one", node.replace(sizes=(*sizes[:k], n - 1, *sizes[k + 1 :]))


def show(node: Node) -> str:
    match node:
        case loop.For(var) | tile.For(var):
            return f"loop {var}"
        case Let(name) | Init(name) | Accum(name) | Store(name) | Slice(name):
            return str(name)
    return expressions.show(node)
