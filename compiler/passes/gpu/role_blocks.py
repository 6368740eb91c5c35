"""Roles as branches of a function, and the signals between them as calls.

The threads of the first role execute the block's other statements; the warps of other roles follow them.
"""

from __future__ import annotations

from itertools import takewhile

from compiler.ir import kernel as k
from compiler.ir.expr import Expr, Var, both, const, op, select, substitute
from compiler.ir.roles import Advance, Arrive, Expect, Mbarriers, One, Ring, RingStmt, Role, Wait
from compiler.ir.statement import If, Stmt
from compiler.passes.gpu import scope as scopes
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import address, lowered, thread_of
from compiler.passes.gpu.scope import THREAD, WARP, Scope
from compiler.passes.gpu.sequences import sequence
from compiler.passes.gpu.wgmma import wait_all
from compiler.schedule.gpu.matmul import KEPT_PREPARING
from compiler.targets.legal import WARPGROUP

Body = list[k.Stmt]


def roles(state: Emission, body: tuple[Stmt, ...], scope: Scope) -> tuple[int, Body]:
    """The number of threads after the computing ones, and the body with a branch for each role."""
    before = tuple(takewhile(lambda s: not isinstance(s, Role), body))
    own = [s for s in body if isinstance(s, Role)]
    after = body[len(before) + len(own) :]
    compute, copy, prepare = _match_roles(state, own)
    start = sequence(state, before, scope)
    computing = [*sequence(state, (*compute.body, *after), scope.inner()), *wait_all(state)]
    copying = sequence(state, copy.body, scope.inner(level="thread"))
    producer_branch: Body = [k.If(op("eq", THREAD, const(copy.first)), tuple(copying))]
    first = copy.first // WARP
    if prepare is not None:
        role = scopes.Role(prepare.threads, prepare.first, KEPT_PREPARING)
        preparing = sequence(state, prepare.body, scope.inner(role=role))
        producer_branch = [k.If(op("eq", state.warp(), const(first)), tuple(producer_branch), tuple(preparing))]
    if copy.registers:
        producer_branch = [k.Call("mlc_registers_decrease", (copy.registers,), ()), *producer_branch]
        computing = [k.Call("mlc_registers_increase", (compute.registers,), ()), *computing]
    is_producer = op("ge", state.warp(), const(first))
    threads = WARPGROUP if copy.registers else WARP + (prepare.threads if prepare is not None else 0)
    return threads, [
        *start,
        *_initialise_barriers(state, copy.first),
        k.If(is_producer, tuple(producer_branch), tuple(computing)),
        # No block may exit while others copy to its memory or signal to it.
        *([k.Call("mlc_cluster_leave", (), ())] if state.blocks else []),
    ]


def _match_roles(state: Emission, own: list[Role]) -> tuple[Role, Role, Role | None]:
    match own:
        case [Role("compute") as compute, Role("copy") as copy]:
            return compute, copy, None
        case [Role("compute") as compute, Role("copy") as copy, Role("prepare") as prepare]:
            return compute, copy, prepare
    raise state.refuse(f"no threads are there for {', '.join(r.kind for r in own)}")


def _initialise_barriers(state: Emission, copy_thread: int) -> Body:
    """One thread initialises the mbarriers, while the one that issues copies prefetches the tensor maps."""
    ready: Body = []
    for name, slots, count in state.mbarriers:
        ready += [
            k.Call("mlc_mbarrier_init", (), (k.Address(name, const(n)), const(count)), (name,)) for n in range(slots)
        ]
    ready.append(k.Call("mlc_mbarrier_fence_init", (), ()))
    known = tuple(k.Call("mlc_tma_prefetch", (), (k.Map(name),)) for name in state.maps.values())
    is_copy_thread = op("eq", THREAD, const(copy_thread))
    ready_for = k.Barrier("cluster" if state.blocks else "block")
    return [k.If(op("eq", THREAD, const(0)), tuple(ready)), k.If(is_copy_thread, known), ready_for]


def emit_signal(state: Emission, s: RingStmt | One | If, scope: Scope) -> Body:
    """Emit signals between roles: one thread signals for all, or under a condition."""
    match s:
        case One(body):
            made = sequence(state, body, scope.inner(level="thread"))
            return [k.If(op("eq", thread_of(scope), const(0)), tuple(made))]
        case If(cond, (Arrive() as inner,)):  # one condition for lane and signal
            return _arrive(state, inner, scope, substitute(cond, {Var(n): e for n, e in scope.values.items()}))
        case Mbarriers(name, count, arrivals, blocks):
            state.barriers(name, count, arrivals, blocks)
            return []
        case Ring():
            return _ring(state, s, scope)
        case Advance(slot, phase, depth, last):
            return _advance(scope.values.get(slot), scope.values[phase], depth, scope.values.get(last))
        case Wait(barrier, phase):
            at = address(state, barrier, scope)
            return [k.Call("mlc_mbarrier_wait", (), (at, lowered(state, phase, scope)), (at.buffer,))]
        case Arrive():
            return _arrive(state, s, scope)
        case Expect(barrier, count):
            at = address(state, barrier, scope)
            return [k.Call("mlc_mbarrier_expect", (), (at, const(count)), (at.buffer,))]
    raise TypeError(f"{type(s).__name__} is no statement of a ring")


def _arrive(state: Emission, s: Arrive, scope: Scope, *where: Expr) -> Body:
    """One thread of each warp arrives; at the mbarriers of all blocks of a cluster, one for each."""
    at = address(state, s.barrier, scope)
    if at.buffer in state.blocks:
        is_for_block = op("lt", state.lane(), const(state.blocks[at.buffer]))
        signal = k.Call("mlc_mbarrier_arrive_at", (), (at, state.lane()), (at.buffer,))
        return [k.If(both(is_for_block, *where), (signal,))]
    call = k.Call("mlc_mbarrier_arrive", (), (at,), (at.buffer,))
    return [k.If(both(op("eq", state.lane(), const(0)), *where), (call,))]


def _ring(state: Emission, s: Ring, scope: Scope) -> Body:
    out: Body = []
    for name, value in ((s.slot, 0), (s.phase, s.start)):
        if name:
            made = state.fresh(name)
            scope.values[name] = Var(made)
            out.append(k.Declare(made, const(value)))
    if s.slot:
        slot = scope.values[s.slot]
        assert isinstance(slot, Var)
        scope.ranges[slot.name] = (0, s.depth - 1)
        for name in s.tiles:
            state.shared[name] = state.shared[name].in_slot(slot)
    return out


def _advance(slot: Expr | None, phase: Expr, depth: int, last: Expr | None) -> Body:
    """Advance to the next slot; the phase flips each time the ring wraps around."""
    assert isinstance(phase, Var)
    turned = op("xor", phase, const(1))
    if depth == 1:
        return [k.Assign(phase.name, turned)]
    assert isinstance(slot, Var)
    kept: Body = [k.Assign(last.name, slot)] if isinstance(last, Var) else []
    more = op("lt", slot, const(depth - 1))
    following = select(more, slot + 1, const(0))
    return [*kept, k.Assign(phase.name, select(more, phase, turned)), k.Assign(slot.name, following)]
