"""Emit groups of blocks that split a reduction: their setup, and the barrier after which they combine their parts."""

from __future__ import annotations

import math

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import i32
from compiler.ir.expr import Expr, Load, Var, const, dim, op, static
from compiler.ir.tensor import Tensor, row_major, scaled
from compiler.passes.gpu import shared_memory
from compiler.passes.gpu.block_groups import Group, GroupBarrier
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import barrier, lowered, thread_of
from compiler.passes.gpu.scope import Scope
from compiler.passes.gpu.sequences import sequence
from compiler.passes.gpu.shared_memory import SharedTile

Body = list[k.Stmt]


def set_up_group(state: Emission, held: tile.Alloc, parts: tile.For, axes: list[tile.For], scope: Scope) -> None:
    """Set up the group and the place of its tile."""
    t, name = held.tensor, state.facts.name
    part_count, *lengths = (static(n, f"the size of {t.name}") for n in t.shape)
    count = static(parts.extent, f"the number of blocks of {parts.var}")
    if part_count != count:
        raise ValueError(f"kernel {name}: tile {t.name} has {part_count} parts, and {parts.var} makes {count}")
    block = scope.values[parts.var]
    scope.buffers[t.name] = t
    state.taken.add(t.name)
    if held.space == "cluster":
        own = t.replace(shape=t.shape[1:], strides=t.strides[1:])
        size = shared_memory.size_of(own, 0)
        state.group = Group(held, count, size, block)
        state.arrays.append(k.Array(t.name, t.dtype, size, "shared", shared_memory.alignment(0)))
        state.shared[t.name] = SharedTile(own, t.name, 0, size, const(0))
        return
    group_count: Expr = const(1)
    number: Expr = const(0)
    for f in axes:
        group_count = scaled(group_count, f.extent)
        number = number * f.extent + Var(f.var)
    stem = f"{state.facts.kernel.writes[-1]}_{t.name}"  # a name that no other kernel uses
    shape = (group_count, *t.shape)
    parts_tensor = t.replace(name=state.fresh(stem), shape=shape, strides=row_major(shape))
    tickets = Tensor(state.fresh(f"{stem}_tickets"), i32, (group_count,), (dim(1),))
    size = math.prod(lengths)
    group = Group(held, count, size, block, number, (parts_tensor, tickets), state.fresh("last_block"))
    state.group = group
    state.arrays.append(k.Array(group.last, i32, 1, "shared", 4))
    scope.buffers[t.name] = parts_tensor


def group_barrier(state: Emission, s: GroupBarrier, scope: Scope) -> Body:
    """The barrier after all parts, and what follows in the blocks that continue."""
    group = state.group
    assert group is not None and scope.level == "block"
    if group.cluster:
        # No block may exit while others read its memory.
        leave = k.Call("mlc_cluster_leave", (), ())
        return [k.Barrier("cluster"), *sequence(state, s.after, scope.inner(after_barrier=True)), leave]
    first = op("eq", thread_of(scope), const(0))
    _, tickets = group.memory
    ticket_address, flag = k.Address(tickets.name, lowered(state, group.number, scope)), k.Address(group.last, const(0))
    take_ticket: Body = [
        k.Call("mlc_fence_device", (), ()),
        k.Call("mlc_take_ticket", (), (flag, ticket_address, const(group.count)), (group.last, tickets.name)),
        k.Call("mlc_fence_device", (), ()),
    ]
    # A part of one element is stored by the thread that takes the ticket.
    alone = all(n is const(1) for n in group.held.tensor.shape[1:])
    stored = [] if alone else [barrier(state, scope)]
    ticket = [*stored, k.If(first, tuple(take_ticket)), barrier(state, scope)]
    after = sequence(state, s.after, scope.inner(after_barrier=True))
    is_last = op("ne", Load(group.last, (const(0),), i32), const(0, i32))
    return [*ticket, k.If(is_last, tuple(after))]


def over_blocks(state: Emission, f: tile.For, scope: Scope) -> Body:
    """A loop over the blocks of a cluster after the barrier: each block executes its own iteration again."""
    group = state.group
    if group is None or not group.cluster or not scope.after_barrier or f.extent is not const(group.count):
        raise state.refuse(f"the loop {f.var} over blocks is inside {scope.level}s")
    inner = scope.inner()
    inner.values[f.var] = group.block
    return sequence(state, f.body, inner)
