"""Lower expressions of Tile IR to Kernel IR: the places of tile elements, and the meaning of names."""

from __future__ import annotations

from compiler.analysis import access
from compiler.ir import kernel as k
from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, cast, const, op, select
from compiler.ir.index import simplify
from compiler.ir.roles import Mbarrier
from compiler.passes.gpu import fragments, shared_memory
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.scope import THREAD, Scope
from compiler.passes.gpu.shared_memory import SharedTile
from compiler.passes.gpu.vectors import uniform


def lowered(state: Emission, e: Expr, scope: Scope) -> Expr:
    """Lower an expression of Tile IR to Kernel IR in `scope`."""
    match e:
        case Const():
            return e
        case Var(name):
            return scope.values.get(name, e)
        case Load(buffer, index, dtype):
            where, place = place_of(state, buffer, index, scope)
            if (where, place) in scope.ready:
                where, place = scope.ready[where, place]
            elif is_in_cluster_memory(state, buffer, scope):
                there, rank = split_cluster_offset(state, k.Address(where, place), scope)
                return k.Peer(there.buffer, there.index, rank, dtype)
            return Load(where, (place,), dtype)
        case Cast(arg, dtype):
            return cast(lowered(state, arg, scope), dtype)
        case Select(cond, then, other):
            return _lower_select(state, lowered(state, cond, scope), then, other, scope)
        case Op(name, args):
            made = op(name, *(lowered(state, a, scope) for a in args))
            return simplify(made, scope.ranges) if made.dtype is i64 or made.dtype is boolean else made
    raise TypeError(f"{type(e).__name__} is not a Tile IR expression")


def _lower_select(state: Emission, cond: Expr, then: Expr, other: Expr, scope: Scope) -> Expr:
    if isinstance(cond, Const):
        return lowered(state, then if cond.value else other, scope)
    made = lowered(state, then, scope)
    return made if _is_zero_else(made, cond, other, scope) else select(cond, made, lowered(state, other, scope))


def _is_zero_else(e: Expr, cond: Expr, other: Expr, scope: Scope) -> bool:
    """Whether the other side of a selection is zero, and a guarded load has already put zero there."""
    while isinstance(e, Cast):
        e = e.arg
    while isinstance(other, Cast):
        other = other.arg
    if not (isinstance(other, Const) and str(other.value) in ("0", "0.0")) or not isinstance(e, Load):
        return False
    held = scope.zeros.get(e.buffer)
    return held is not None and uniform(cond, held.lane, held.width, scope.multiples) is held.guard


def place_of(state: Emission, buffer: str, index: tuple[Expr, ...], scope: Scope) -> tuple[str, Expr]:
    """The array or buffer that holds an element, and its flat index there."""
    if buffer in state.facts.fragments and buffer in scope.registers:
        return scope.registers[buffer], _register(state, buffer, index, scope)
    if buffer in scope.registers:
        around = scope.lanes
        if around is None or index != (Var(around.var),) or around.thread_map != scope.thread_maps[buffer]:
            raise state.refuse(
                f"tile {buffer} is in registers, spread over {scope.thread_maps[buffer]}; "
                "it can be used in loops that are spread alike, at their own place, only"
            )
        return buffer, around.slot
    in_group = _in_group(state, buffer, index, scope)
    if isinstance(in_group, Expr):
        return buffer, in_group
    index = in_group or index
    if buffer in state.shared:
        held = state.shared[buffer]
        return held.array, offset_in(state, held, tuple(lowered(state, i, scope) for i in index), scope)
    flat = access.address(index, scope.buffers[buffer], scope.tile_ranges())
    return array_of(state, buffer), simplify(lowered(state, flat, scope), scope.ranges, index=True)


def _register(state: Emission, buffer: str, index: tuple[Expr, ...], scope: Scope) -> Expr:
    """The register of a fragment's element at the current rows and columns."""
    part, own = scope.part, state.facts.fragments[buffer]
    offsets: list[Expr | None] = []
    for n in range(2):
        i = index[n] if n < len(index) else None
        if len(index) == 1:  # one value per row, or per column
            i = index[0] if own.shape[n] != 1 else None
        if i is None:
            offsets.append(const(0))
        else:
            offsets.append(
                part.row if part and i is Var(part.rows) else part.column if part and i is Var(part.columns) else None
            )
    row, column = offsets
    if part is None or row is None or column is None or not fragments.same_distribution(part.fragment, own):
        raise state.refuse(
            f"{buffer} is spread over threads as {own.shape} for a tensor instruction; "
            "it can be used at the rows and columns of loops over lanes that go over it, only"
        )
    return fragments.register(own, row, column, scope.ranges)


def array_of(state: Emission, buffer: str) -> str:
    """The array or parameter that holds a buffer visible to other threads."""
    if state.group is not None and state.exchanged and buffer == state.group.held.tensor.name:
        return state.exchanged[0].name
    return state.shared[buffer].array if buffer in state.shared else buffer


def offset_in(state: Emission, held: SharedTile, index: tuple[Expr, ...], scope: Scope) -> Expr:
    """The offset of an element of a tile in shared memory. Swizzled parts of it are computed once, in the prologue."""
    return shared_memory.offset(held, index, scope.ranges, lambda e: state.once("place", e, held.size))


def address(state: Emission, b: Mbarrier, scope: Scope) -> k.Address:
    """The address of an mbarrier."""
    return k.Address(state.named[b.array], lowered(state, b.slot, scope))


def is_global(state: Emission, buffer: str) -> bool:
    """Whether a buffer is in global memory."""
    return any(p.name == array_of(state, buffer) for p in (*state.facts.kernel.params, *state.exchanged))


def is_constant(state: Emission, buffer: str) -> bool:
    """Whether a buffer is in global memory that is not written while the kernel runs."""
    kernel = state.facts.kernel
    return array_of(state, buffer) in {p.name for p in kernel.params} - set(kernel.writes)


def yields_zero(state: Emission, buffer: str, scope: Scope) -> bool:
    """Whether a guarded load of a buffer yields zero where the guard fails."""
    once = buffer in state.facts.kernel.once or is_constant(state, buffer)
    return once or is_in_cluster_memory(state, buffer, scope)


def thread_of(scope: Scope) -> Expr:
    """The index of this thread among those that execute the statement together."""
    if scope.level in ("warp", "column"):
        return scope.values["lane" if scope.level == "warp" else "warp"]
    return THREAD - scope.role.first if scope.role.first else THREAD


def barrier(state: Emission, scope: Scope) -> k.Stmt:
    """A barrier of the threads that execute the statement together."""
    if state.facts.specialised and scope.level == "block":
        return k.Call("mlc_named_barrier", (), (const(2 if scope.role.first else 1), const(scope.role.threads)))
    return k.Barrier("block" if scope.level == "column" else scope.level)


# ---- tiles of a group of blocks


def _in_group(state: Emission, buffer: str, index: tuple[Expr, ...], scope: Scope) -> tuple[Expr, ...] | Expr | None:
    """The index in global memory of an element of the group's tile; None for other buffers.

    In a cluster it is a flat offset instead; after the barrier, as if the blocks' shared memories were contiguous.
    """
    group = state.group
    if group is None or buffer != group.held.tensor.name:
        return None
    if not group.cluster:
        return (group.number, *index)
    part, *rest = (lowered(state, i, scope) for i in index)
    flat = offset_in(state, state.shared[buffer], tuple(rest), scope)
    if scope.after_barrier:
        return simplify(part * group.size + flat, scope.ranges, index=True)
    if part is not group.block:
        raise state.refuse(f"a block of the cluster makes another part of {buffer} than its own")
    return flat


def is_in_cluster_memory(state: Emission, buffer: str, scope: Scope) -> bool:
    """Whether a tile's parts are complete and lie in the shared memories of the blocks of a cluster."""
    return (
        state.group is not None
        and state.group.cluster
        and scope.after_barrier
        and buffer == state.group.held.tensor.name
    )


def split_cluster_offset(state: Emission, at: k.Address, scope: Scope) -> tuple[k.Address, Expr]:
    """Split a flat offset in such a tile into the offset in one block's memory and the block's rank."""
    assert state.group is not None
    there = at.replace(index=simplify(at.index % state.group.size, scope.ranges, index=True))
    return there, simplify(at.index // state.group.size, scope.ranges, index=True)
