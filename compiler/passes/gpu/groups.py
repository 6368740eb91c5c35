"""Blocks that make parts of one result together: how they pass them on, and which of them goes on with the sum.

A loop over blocks that is not the last statement of its body makes a part of a tile in each iteration. Blocks of a
cluster keep theirs in shared memory, where the others read it, and share out what follows. Other blocks store it to
memory of all and take a ticket each, and the one that drew the last goes on by itself. Either way parts are added in
the order of the loop, whoever comes first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import i32
from compiler.ir.expr import Expr, Load, Var, const, dim, op, static
from compiler.ir.index import simplify
from compiler.ir.statement import Stmt
from compiler.ir.tensor import Tensor, row_major, scaled
from compiler.passes.gpu import shared
from compiler.passes.gpu.blocks import is_bound
from compiler.passes.gpu.hazards import Hazards
from compiler.passes.gpu.scope import Scope
from compiler.passes.gpu.shared import SharedTile

if TYPE_CHECKING:
    from compiler.passes.gpu.threads import Lowering

Body = list[k.Stmt]
ZERO = const(0)


class Meeting(Stmt):
    """Here a group's blocks have made the parts of the tile `held`; `after` is what the sum is needed for."""

    held: str
    after: tuple[Stmt, ...]


@dataclass
class Group:
    """The blocks of one loop: the tile of their parts, the elements from one part to the next, this block's number.

    Where it is no cluster, the group has a `number` among all, `memory` has the tensors of the parts and of the
    tickets, and the shared array `last` is to say who drew the last. `met` says that all parts have been made.
    """

    held: tile.Alloc
    count: int
    size: int
    block: Expr
    number: Expr = ZERO
    memory: tuple[Tensor, ...] = ()
    last: str = ""
    met: bool = False

    @property
    def cluster(self) -> bool:
        return self.held.space == "cluster"


def split(body: tuple[Stmt, ...]) -> tuple[tile.Alloc, tile.For, tuple[Stmt, ...]] | None:
    """The tile, the loop over blocks that makes its parts, and what follows; None for another body."""
    match body:
        case (tile.Alloc(space="cluster" | "device") as held, tile.For() as parts, *after) if is_bound(parts, "blocks"):
            return held, parts, tuple(after)
    return None


def begin(low: Lowering, held: tile.Alloc, parts: tile.For, axes: list[tile.For], scope: Scope) -> None:
    """Makes the group known, and where its tile lies."""
    t, name = held.tensor, low.source.name
    made, *lengths = (static(n, f"the size of {t.name}") for n in t.shape)
    count = static(parts.extent, f"the number of blocks of {parts.var}")
    if made != count:
        raise ValueError(f"kernel {name}: tile {t.name} has {made} parts, and {parts.var} makes {count}")
    block = scope.values[parts.var]
    scope.buffers[t.name] = t
    low.taken.add(t.name)
    if held.space == "cluster":
        own = t.replace(shape=t.shape[1:], strides=t.strides[1:])
        size = shared.size_of(own, 0)
        low.group = Group(held, count, size, block)
        low.arrays.append(k.Array(t.name, t.dtype, size, "shared", shared.alignment(0)))
        low.shared[t.name] = SharedTile(own, t.name, 0, size, const(0))
        return
    many: Expr = const(1)
    number: Expr = const(0)
    for f in axes:
        many = scaled(many, f.extent)
        number = number * f.extent + Var(f.var)
    stem = f"{name}_{t.name}"
    shape = (many, *t.shape)
    parts_of = t.replace(name=low.fresh(stem), shape=shape, strides=row_major(shape))
    tickets = Tensor(low.fresh(f"{stem}_tickets"), i32, (many,), (dim(1),))
    size = math.prod(lengths)
    low.group = Group(held, count, size, block, number, (parts_of, tickets), low.fresh("last_block"))
    low.arrays.append(k.Array(low.group.last, i32, 1, "shared", 4))
    scope.buffers[t.name] = parts_of


def place(low: Lowering, buffer: str, index: tuple[Expr, ...], scope: Scope) -> tuple[Expr, ...] | Expr | None:
    """The index in memory of all of an element of the group's tile; in a cluster a flat place, as if the blocks'
    memories lay one after the other once all parts have been made; None for another buffer."""
    group = low.group
    if group is None or buffer != group.held.tensor.name:
        return None
    if not group.cluster:
        return (group.number, *index)
    part, *rest = (low.value(i, scope) for i in index)
    flat = low.offset(low.shared[buffer], tuple(rest), scope)
    if group.met:
        return simplify(part * group.size + flat, scope.ranges, index=True)
    if part is not group.block:
        raise ValueError(
            f"kernel {low.source.name}: a block of the cluster makes another part of {buffer} than its own"
        )
    return flat


def elsewhere(low: Lowering, buffer: str) -> bool:
    """A tile whose parts lie in the shared memories of the blocks of a cluster, which have made them."""
    return low.group is not None and low.group.cluster and low.group.met and buffer == low.group.held.tensor.name


def apart(low: Lowering, at: k.Address, scope: Scope) -> tuple[k.Address, Expr]:
    """A flat place in such a tile as one in the memory of a block, and which block."""
    assert low.group is not None
    there = at.replace(index=simplify(at.index % low.group.size, scope.ranges, index=True))
    return there, simplify(at.index // low.group.size, scope.ranges, index=True)


def meet(low: Lowering, s: Meeting, scope: Scope) -> Body:
    """All blocks of a group have made their parts; what follows, in those that go on."""
    group = low.group
    assert group is not None and scope.level == "block"
    group.met = True
    low.hazards.clear()
    if group.cluster:
        # No block may end while others read its memory.
        leave = k.Call("mlc_cluster_leave", (), ())
        return [k.Barrier("cluster"), *low.sequence(s.after, scope.inner()), leave]
    first = op("eq", low.thread(scope), const(0))
    _, tickets = group.memory
    drawn, flag = k.Address(tickets.name, low.value(group.number, scope)), k.Address(group.last, const(0))
    take: Body = [
        k.Call("mlc_fence_device", (), ()),
        k.Call("mlc_take_ticket", (), (flag, drawn, const(group.count)), (group.last, tickets.name)),
        k.Call("mlc_fence_device", (), ()),
    ]
    # A part of one element was stored by the thread that takes the ticket.
    alone = all(n is const(1) for n in group.held.tensor.shape[1:])
    stored = [] if alone else [low.meet(scope)]
    ticket = [*stored, k.If(first, tuple(take)), low.meet(scope)]
    around, low.hazards = low.hazards, Hazards()
    after = low.sequence(s.after, scope.inner())
    low.hazards = around
    mine = op("ne", Load(group.last, (const(0),), i32), const(0, i32))
    return [*ticket, k.If(mine, tuple(after))]


def over_blocks(low: Lowering, f: tile.For, scope: Scope) -> Body:
    """A loop over the blocks of a cluster, behind the one that made the parts: each block has its iteration again."""
    group = low.group
    if group is None or not group.cluster or not group.met or f.extent is not const(group.count):
        raise ValueError(f"kernel {low.source.name}: the loop {f.var} over blocks is inside {scope.level}s")
    inner = scope.inner()
    inner.values[f.var] = group.block
    return low.sequence(f.body, inner)
