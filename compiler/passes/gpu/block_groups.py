"""Blocks that split one reduction: how they pass their parts on, and which of them combines these.

A loop over blocks that is not the last statement of its body makes a part of a tile in each iteration. Blocks of a
cluster keep theirs in shared memory, where the others read it, and share out what follows. Other blocks store it to
memory of all and take a ticket each, and the one that drew the last goes on by itself. Either way parts are added in
the order of the loop, whoever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Expr, const
from compiler.ir.launches import is_bound
from compiler.ir.statement import Stmt
from compiler.ir.tensor import Tensor

ZERO = const(0)


class GroupBarrier(Stmt):
    """A barrier of the group's blocks, which have made the parts of the tile `held`; `after` needs their sum."""

    held: str
    after: tuple[Stmt, ...]


@dataclass(frozen=True)
class Group:
    """The blocks of one loop: the tile of their parts, the elements from one part to the next, this block's number.

    Where it is no cluster, the group has a `number` among all, `memory` has the tensors of the parts and of the
    tickets, and the shared array `last` is to say who drew the last.
    """

    held: tile.Alloc
    count: int
    size: int
    block: Expr
    number: Expr = ZERO
    memory: tuple[Tensor, ...] = ()
    last: str = ""

    @property
    def cluster(self) -> bool:
        return self.held.space == "cluster"


def split(body: tuple[Stmt, ...]) -> tuple[tile.Alloc, tile.For, tuple[Stmt, ...]] | None:
    """The tile, the loop over blocks that makes its parts, and what follows; None for another body."""
    match body:
        case (tile.Alloc(space="cluster" | "device") as held, tile.For() as parts, *after) if is_bound(parts, "blocks"):
            return held, parts, tuple(after)
    return None
