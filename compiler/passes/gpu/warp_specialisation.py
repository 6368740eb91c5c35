"""Kernels in which a warp of its own asks for copies, while the others compute: both run the same loops.

A slot of a pipeline is full when its bytes have come, and empty when all warps that compute have said so; both tell by
an mbarrier for each slot, whose phases alternate each time that the ring is gone through.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Expr, Var, both, const, names, op
from compiler.ir.index import range_below
from compiler.ir.statement import If, Let, Stmt, Store
from compiler.passes.gpu import overlap, pipelines, stages, tma, wgmma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered
from compiler.passes.gpu.facts import Facts
from compiler.passes.gpu.fragments import WARP
from compiler.passes.gpu.scope import THREAD, Role, Scope
from compiler.passes.gpu.sequences import emit, loop_body, sequence
from compiler.schedule.gpu.matmul import KEPT_PREPARING
from compiler.targets.legal import GROUP

Body = list[k.Stmt]


def roles(state: Emission, body: tuple[Stmt, ...], scope: Scope) -> tuple[int, Body]:
    """How many threads do not compute, and the body for each role.

    Copies ahead are for one thread of the warps behind, all else for the threads before. A producer of several
    warps may prepare what was copied, in the others of them.
    """
    pipes = [n for s in body for n in s.walk() if stages.is_specialised(n)]
    for n in pipes:
        _allocate(state, n, scope)
    consumers = scope.inner()
    computing = sequence(state, body, consumers)
    computing += wgmma.wait_all(state)
    computing = [*_counters(state), *computing]
    asking: Body = []
    for ring in state.rings.values():
        asking += [k.Declare(ring.copied[0].name, const(0)), k.Declare(ring.copied[1].name, const(1))]
    asking += _role(state, body, scope.inner(level="thread"), _copying)
    warps = stages.producers(pipes)
    given = dict(pipes[0].bind.args)
    first = state.facts.threads // WARP
    one: Body = [k.If(op("eq", THREAD, const(state.facts.threads)), tuple(asking))]
    if warps > 1:
        preparing = tuple(_prepare_warps(state, body, scope, warps - 1))
        one = [k.If(op("eq", state.warp(), const(first)), tuple(one), preparing)]
    if "consumer_registers" in given:
        one = [k.Call("mlc_registers_decrease", (given["producer_registers"],), ()), *one]
        computing = [k.Call("mlc_registers_increase", (given["consumer_registers"],), ()), *computing]
    own = op("ge", state.warp(), const(first))
    return GROUP if "consumer_registers" in given else warps * WARP, [
        *_start(state),
        k.If(own, tuple(one), tuple(computing)),
    ]


def _start(state: Emission) -> Body:
    """One thread makes the barriers ready, while another has the tensor maps fetched."""
    ready: Body = []
    for name, slots, count in state.mbarriers:
        ready += [
            k.Call("mlc_mbarrier_init", (), (k.Address(name, const(n)), const(count)), (name,)) for n in range(slots)
        ]
    ready.append(k.Call("mlc_mbarrier_fence_init", (), ()))
    known = tuple(k.Call("mlc_tma_prefetch", (), (k.Map(name),)) for name in state.maps.values())
    asks = op("eq", THREAD, const(state.facts.threads))
    return [k.If(op("eq", THREAD, const(0)), tuple(ready)), k.If(asks, known), k.Barrier("block")]


def _counters(state: Emission) -> Body:
    out: Body = []
    for ring in state.rings.values():
        out += [k.Declare(ring.slot.name, const(0)), k.Declare(ring.phase.name, const(0))]
    return [*out, *(k.Declare(p.name, const(0)) for p in state.parities.values())]


def _allocate(state: Emission, f: tile.For, scope: Scope) -> None:
    """Shared memory of a pipeline's tiles, and its barriers."""
    depth = dict(f.bind.args).get("depth", 1)
    used = _slotted(state.facts, f)
    for s in f.body:
        if isinstance(s, tile.Alloc) and s.tensor.name in used:
            state.allocate(s, depth)
            scope.buffers[s.tensor.name] = s.tensor
    state.ring(f.var, depth, dict(f.bind.args)["producers"] - 1 if stages.prepared(f) else 0)
    if stages.overlaps(f):
        state.ring(stages.later(f), depth, 0)


def _slotted(facts: Facts, f: tile.For) -> frozenset[str]:
    return stages.slotted(f, facts.name)


# ---- the warps of the producer

Act = Callable[[Emission, tile.For, Scope], Body]


def _role(state: Emission, body: tuple[Stmt, ...], scope: Scope, act: Act) -> Body:
    """The loops around pipelines, and the values that they are computed from; `act` is what is done in a pipeline."""
    kept = [s for s in body if stages.has_producers((s,))]
    needed: set[str] = set().union(*(_needed(state, s) for s in kept))
    out: list[Stmt] = []
    for s in reversed(body):
        if s in kept:
            out.insert(0, s)
        elif isinstance(s, Let) and s.name in needed:
            needed |= names(s.value)
            out.insert(0, s)
    made: Body = []
    for s in out:
        match s:
            case tile.For() if stages.is_specialised(s):
                made += act(state, s, scope)
            case tile.For(var, extent, _, _, inner_body):
                inner = scope.inner()
                name = state.fresh(var)
                made_extent = lowered(state, extent, scope)
                inner.values[var], inner.ranges[name] = Var(name), range_below(made_extent, scope.ranges)
                made.append(k.For(name, const(0), made_extent, 1, tuple(_role(state, inner_body, inner, act))))
            case If(cond, inner_body):
                made.append(k.If(lowered(state, cond, scope), tuple(_role(state, inner_body, scope.inner(), act))))
            case _:
                made += emit(state, s, scope)
    return made


def _needed(state: Emission, s: Stmt) -> set[str]:
    """Names that what producers do in a statement is computed from."""
    if stages.is_specialised(s):
        assert isinstance(s, tile.For)
        copied, _ = stages.split(s)
        return names(s.extent).union(*(names(c) for c in (*copied, *stages.prepared(s))))
    match s:
        case tile.For(_, extent, _, _, body):
            return names(extent).union(*(_needed(state, c) for c in body))
        case If(cond, body):
            return names(cond).union(*(_needed(state, c) for c in body))
        case Let(_, value):
            return names(value)
    return set()


def _loop(state: Emission, f: tile.For, slot: Var, scope: Scope) -> tuple[Var, Expr, Scope]:
    """The variable, the extent and the inside of a pipeline as one role runs it, with its tiles in that role's slot."""
    extent = lowered(state, f.extent, scope)
    inner = scope.inner()
    var = Var(state.fresh(f.var))
    inner.values[f.var], inner.ranges[var.name] = var, range_below(extent, scope.ranges)
    inner.ranges[slot.name] = (0, state.rings[f.var].depth - 1)
    pipelines.at(state, _slotted(state.facts, f), slot)
    return var, extent, inner


def _copying(state: Emission, f: tile.For, scope: Scope) -> Body:
    """What the thread that asks for copies does in a pipeline."""
    copied, _ = stages.split(f)
    var, extent, inner = _loop(state, f, state.rings[f.var].copied[0], scope)
    body: Body = []
    for s in copied:
        if not isinstance(s, tile.Copy):
            body += emit(state, s, inner)
    for key, tiles in overlap.rings(state, f, _slotted(state.facts, f)):
        ring = state.rings[key]
        slot, phase = ring.copied
        inner.ranges[slot.name] = (0, ring.depth - 1)
        pipelines.at(state, tiles, slot)
        full, empty = k.Address(ring.full, slot), k.Address(ring.empty, slot)
        own = [s for s in copied if isinstance(s, tile.Copy) and s.target.buffer in tiles]
        body.append(k.Call("mlc_mbarrier_wait", (), (empty, phase), (ring.empty,)))
        total = const(sum(tma.size(state, s) for s in own))
        body.append(k.Call("mlc_mbarrier_expect", (), (full, total), (ring.full,)))
        for s in own:
            body += tma.load(state, s, full, inner)
        body += pipelines.next_slot(slot, phase, ring.depth)
    return [k.For(var.name, const(0), extent, 1, tuple(body))]


def _preparing(state: Emission, f: tile.For, scope: Scope) -> Body:
    """What the other warps of the producer do in a pipeline: loops of their own before the matmuls."""
    ring = state.rings[f.var]
    slot, phase = ring.prepared
    own = stages.prepared(f)
    if not own:
        return []
    var, extent, inner = _loop(state, f, slot, scope)
    lets = [s for s in f.body if isinstance(s, Let) and s.name in set().union(*(names(x) for x in own))]
    body: Body = [k.Call("mlc_mbarrier_wait", (), (k.Address(ring.full, slot), phase), (ring.full,))]
    body += sequence(state, (*lets, *own), inner)
    arrive = k.Call("mlc_mbarrier_arrive", (), (k.Address(ring.ready, slot),), (ring.ready,))
    body += [k.Call("mlc_fence_async", (), ()), k.Barrier("warp"), k.If(op("eq", state.lane(), const(0)), (arrive,))]
    body += pipelines.next_slot(slot, phase, ring.depth)
    return [k.For(var.name, const(0), extent, 1, tuple(body))]


def _prepare_warps(state: Emission, body: tuple[Stmt, ...], scope: Scope, count: int) -> Body:
    """The role of the producer's warps but the first."""
    role = Role(count * WARP, state.facts.threads + WARP, KEPT_PREPARING)
    out: Body = []
    for ring in state.rings.values():
        slot, phase = ring.prepared
        out += [k.Declare(slot.name, const(0)), k.Declare(phase.name, const(0))]
    return [*out, *_role(state, body, scope.inner(role=role), _preparing)]


# ---- the threads that compute


def computed(state: Emission, f: tile.For, scope: Scope) -> Body:
    """The loop of a pipeline without its copies: wait until a slot is full, compute, say that it is empty.

    Where matmuls alone use the slots, a slot is given back an iteration later, when the next ones are on their way.
    """
    if stages.overlaps(f):
        return overlap.computed(state, f, _slotted(state.facts, f), scope)
    ring = state.rings[f.var]
    used = _slotted(state.facts, f)
    _, rest = stages.split(f)
    done = stages.prepared(f)
    rest = stages.without_tiles(rest, used)
    extent = lowered(state, f.extent, scope)
    inner = scope.inner()
    var = Var(state.fresh(f.var))
    inner.values[f.var], inner.ranges[var.name] = var, range_below(extent, scope.ranges)
    inner.ranges[ring.slot.name] = (0, ring.depth - 1)
    pipelines.at(state, used, ring.slot)
    groups = _running(state, rest, used)
    out: Body = []
    out += wgmma.wait_all(state)
    state.matmuls.blank |= dict.fromkeys(state.matmuls.blank, op("eq", var, const(0)))
    body: Body = [k.Call("mlc_mbarrier_wait", (), (k.Address(ring.full, ring.slot), ring.phase), (ring.full,))]
    if done:
        ready = k.Address(ring.ready, ring.slot)
        made = frozenset(n.buffer for s in done for n in s.walk() if isinstance(n, Store))
        state.awaited = made, k.Call("mlc_mbarrier_wait", (), (ready, ring.phase), (ring.ready,))
    state.matmuls.latest = ""
    body += loop_body(state, f, rest, inner)
    warp_first = op("eq", state.lane(), const(0))
    if groups:
        last = Var(state.fresh("last"))
        inner.ranges[last.name] = (0, ring.depth - 1)
        out.append(k.Declare(last.name, const(0)))
        arrive = k.Call("mlc_mbarrier_arrive", (), (k.Address(ring.empty, last),), (ring.empty,))
        body.append(k.Call("mlc_wgmma_wait", (groups,), ()))
        body.append(k.If(both(warp_first, op("lt", const(0), var)), (arrive,)))
        body.append(k.Assign(last.name, ring.slot))
        after = [*wgmma.wait_all(state), k.If(both(warp_first, op("lt", const(0), extent)), (arrive,))]
    else:
        arrive = k.Call("mlc_mbarrier_arrive", (), (k.Address(ring.empty, ring.slot),), (ring.empty,))
        body += wgmma.wait_all(state)
        if not all(wgmma.is_asynchronous(state.facts, s) for s in rest if tile.buffers((s,)) & used):
            body.append(k.Barrier("warp"))
        body.append(k.If(warp_first, (arrive,)))
        after = []
    body += pipelines.next_slot(ring.slot, ring.phase, ring.depth)
    return [*out, k.For(var.name, const(0), extent, 1, tuple(body)), *after]


def _running(state: Emission, rest: tuple[Stmt, ...], used: frozenset[str]) -> int:
    """How many groups of products an iteration starts, where they may run into the next one; else 0."""
    matmuls = [s for s in rest if isinstance(s, tile.Mma)]
    if not matmuls or not all(wgmma.is_asynchronous(state.facts, s) for s in matmuls):
        return 0
    registers = {x.buffer for s in matmuls for x in (s.acc, s.a) if x.buffer in state.facts.fragments}
    others = [s for s in rest if s not in matmuls and not isinstance(s, tile.Alloc | Let)]
    inside = {n.tensor.name for s in rest for n in s.walk() if isinstance(n, tile.Alloc)}
    if inside & registers or any(tile.buffers((s,)) & (registers | used) for s in others):
        return 0
    return len(matmuls)
