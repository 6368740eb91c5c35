"""Split reductions: how blocks exchange their partial results, and which block combines them.

A loop over blocks that is not the last statement of its body computes one part of a tile per iteration. Blocks of a
cluster keep their parts in shared memory, where the others read them, and share what follows. Other blocks store their
parts to global memory and take a ticket each; the block that draws the last ticket continues alone. In both cases parts
are added in the order of the loop, whatever the order of arrival.
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
    """A barrier of the group's blocks, after the parts of the tile `held`; `after` needs their sum."""

    held: str
    after: tuple[Stmt, ...]


@dataclass(frozen=True)
class Group:
    """The blocks of one loop: the tile of their parts, their `count`, the `size` of a part, and this block's number.

    `size` is in elements. Without a cluster, `number` is the group's index among all groups, `memory` has the tensors
    of the parts and of the tickets, and the shared array `last` tells whether this block drew the last ticket.
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
    """The tile, the loop over blocks that computes its parts, and the statements after it; None for other bodies."""
    match body:
        case (tile.Alloc(space="cluster" | "device") as held, tile.For() as parts, *after) if is_bound(parts, "blocks"):
            return held, parts, tuple(after)
    return None
