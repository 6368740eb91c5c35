"""Kernels in which a warp of its own asks for copies, while the others compute: both run the same loops.

A slot of a pipeline is full when its bytes have come, and empty when all warps that compute have said so; both tell by
an mbarrier for each slot, whose phases alternate each time that the ring is gone through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Var, both, const, names, op, select
from compiler.ir.statement import If, Let, Stmt
from compiler.passes.gpu import pipelines, tma, wgmma
from compiler.passes.gpu.fragments import WARP
from compiler.passes.gpu.scope import THREAD, Scope, range_of

if TYPE_CHECKING:
    from compiler.passes.gpu.threads import Lowering

Body = list[k.Stmt]

REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread
BESIDES = 64  # registers of a thread that computes, beyond its fragments
GROUP = 4 * WARP
FEW = 24  # registers that a thread keeps that only asks for copies


def is_specialised(s: Stmt) -> bool:
    return isinstance(s, tile.For) and s.bind.level == "pipeline" and dict(s.bind.args).get("producers", 0) > 0


def has_producers(body: tuple[Stmt, ...]) -> bool:
    return any(is_specialised(n) for s in body for n in s.walk())


def roles(low: Lowering, body: tuple[Stmt, ...], scope: Scope) -> Body:
    """The body twice: its copies ahead for one thread of the warps behind, all else for the threads before."""
    for s in body:
        for n in s.walk():
            if is_specialised(n):
                assert isinstance(n, tile.For)
                _prepare(low, n, scope)
    consumers = scope.inner()
    computing = low.sequence(body, consumers)
    computing += wgmma.finish(low, consumers)
    producer: Body = []
    asking = scope.inner(level="thread")
    for n in low.rings.values():
        producer += [k.Declare(n.slot_asked.name, const(0)), k.Declare(n.phase_asked.name, const(1))]
    producer += _asked(low, body, asking)
    computing = [*_counters(low), *computing]
    low.producers = _producer_threads(low)
    ready: Body = []
    for name, slots, count in low.signals:
        ready += [
            k.Call("mlc_mbarrier_init", (), (k.Address(name, const(n)), const(count)), (name,)) for n in range(slots)
        ]
    ready.append(k.Call("mlc_mbarrier_fence_init", (), ()))
    start: Body = [k.If(op("eq", THREAD, const(0)), tuple(ready)), k.Barrier("block")]
    many = low.producers == GROUP
    if many:
        # The threads of a block share out what they were launched with, which is the same for all and a multiple of 8.
        groups = low.threads // GROUP
        launched = REGISTERS // (low.threads + GROUP) // 8 * 8
        left = (launched * (groups + 1) - FEW) // groups // 8 * 8
        start_producer: Body = [k.Call("mlc_registers_decrease", (FEW,), ())]
        computing = [k.Call("mlc_registers_increase", (min(left, 240),), ()), *computing]
    else:
        start_producer = []
    one = k.If(op("eq", THREAD, const(low.threads)), tuple(producer))
    own = op("ge", low.warp(), const(low.threads // WARP))
    return [*start, k.If(own, (*start_producer, one), tuple(computing))]


def _producer_threads(low: Lowering) -> int:
    """A warp, or where the threads that compute need more registers than there are for all alike, four that give."""
    need = BESIDES + sum(f.count * low.tiles[n].dtype.bytes // 4 for n, f in low.fragments.items() if n in low.tiles)
    have = REGISTERS // (low.threads + WARP) // 8 * 8
    hands = "setmaxnreg" in low.target.features and low.threads % GROUP == 0
    return GROUP if hands and need > min(have, MOST_REGISTERS) else WARP


def _counters(low: Lowering) -> Body:
    out: Body = []
    for ring in low.rings.values():
        out += [k.Declare(ring.slot.name, const(0)), k.Declare(ring.phase.name, const(0))]
    return [*out, *(k.Declare(p.name, const(0)) for p in low.parities.values())]


def _prepare(low: Lowering, f: tile.For, scope: Scope) -> None:
    """Shared memory of a pipeline's tiles, and its barriers."""
    depth = dict(f.bind.args).get("depth", 1)
    used = copied_tiles(low, f)
    for s in f.body:
        if isinstance(s, tile.Alloc) and s.tensor.name in used:
            low.allocate(s, depth)
            scope.buffers[s.tensor.name] = s.tensor
    low.ring(f, depth)


def copied_tiles(low: Lowering, f: tile.For) -> frozenset[str]:
    """Tiles that the pipeline copies ahead."""
    copied, _ = pipelines.split(f, low)
    used = frozenset(c.target.buffer for c in copied if isinstance(c, tile.Copy))
    own = {s.tensor.name for s in f.body if isinstance(s, tile.Alloc)}
    if not used or not used <= own or any(isinstance(c, tile.Copy) and c.how != "tma" for c in copied):
        raise ValueError(
            f"kernel {low.source.name}: the producers of {f.var} copy nothing by tma, or to tiles from outside of it"
        )
    return used


# ---- the thread that asks


def _asked(low: Lowering, body: tuple[Stmt, ...], scope: Scope) -> Body:
    """The loops around copies ahead, and the values that they are computed from."""
    kept = [s for s in body if has_producers((s,))]
    needed: set[str] = set()
    for s in kept:
        needed |= _needed(low, s)
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
            case tile.For() if is_specialised(s):
                made += _asking(low, s, scope)
            case tile.For(var, extent, _, _, inner_body):
                inner = scope.inner()
                name = low.fresh(var)
                made_extent = low.value(extent, scope)
                inner.values[var], inner.ranges[name] = Var(name), range_of(made_extent, scope.ranges)
                made.append(k.For(name, const(0), made_extent, 1, tuple(_asked(low, inner_body, inner))))
            case If(cond, inner_body):
                made.append(k.If(low.value(cond, scope), tuple(_asked(low, inner_body, scope.inner()))))
            case _:
                made += low.stmt(s, scope)
    return made


def _needed(low: Lowering, s: Stmt) -> set[str]:
    """Names that the copies ahead in a statement are computed from."""
    if is_specialised(s):
        assert isinstance(s, tile.For)
        copied, _ = pipelines.split(s, low)
        return names(s.extent).union(*(names(c) for c in copied))
    match s:
        case tile.For(_, extent, _, _, body):
            return names(extent).union(*(_needed(low, c) for c in body))
        case If(cond, body):
            return names(cond).union(*(_needed(low, c) for c in body))
        case Let(_, value):
            return names(value)
    return set()


def _asking(low: Lowering, f: tile.For, scope: Scope) -> Body:
    ring = low.rings[f.var]
    copied, _ = pipelines.split(f, low)
    extent = low.value(f.extent, scope)
    inner = scope.inner()
    var = Var(low.fresh(f.var))
    inner.values[f.var], inner.ranges[var.name] = var, range_of(extent, scope.ranges)
    inner.ranges[ring.slot_asked.name] = (0, ring.depth - 1)
    full, empty = (k.Address(name, ring.slot_asked) for name in (ring.full, ring.empty))
    pipelines.at(low, copied_tiles(low, f), ring.slot_asked)
    total = sum(tma.size(low, s) for s in copied if isinstance(s, tile.Copy))
    body: Body = [
        k.Call("mlc_mbarrier_wait", (), (empty, ring.phase_asked), (ring.empty,)),
        k.Call("mlc_mbarrier_expect", (), (full, const(total)), (ring.full,)),
    ]
    for s in copied:
        body += tma.load(low, s, full, inner) if isinstance(s, tile.Copy) else low.stmt(s, inner)
    body += _next(ring.slot_asked, ring.phase_asked, ring.depth)
    return [k.For(var.name, const(0), extent, 1, tuple(body))]


def _next(slot: Var, phase: Var, depth: int) -> Body:
    """The next slot of a ring; each time that the ring begins again, phases change."""
    if depth == 1:
        return [k.Assign(phase.name, op("xor", phase, const(1)))]
    more = op("lt", slot, const(depth - 1))
    turned = k.Assign(phase.name, select(more, phase, op("xor", phase, const(1))))
    return [turned, k.Assign(slot.name, pipelines.following(slot, depth))]


# ---- the threads that compute


def computed(low: Lowering, f: tile.For, scope: Scope) -> Body:
    """The loop of a pipeline without its copies: wait until a slot is full, compute, say that it is empty.

    Where products alone use the slots, a slot is given back an iteration later, when the next ones are on their way.
    """
    ring = low.rings[f.var]
    used = copied_tiles(low, f)
    _, rest = pipelines.split(f, low)
    rest = pipelines.rest_of(rest, used)
    extent = low.value(f.extent, scope)
    inner = scope.inner(ordered=scope.ordered | used)
    var = Var(low.fresh(f.var))
    inner.values[f.var], inner.ranges[var.name] = var, range_of(extent, scope.ranges)
    inner.ranges[ring.slot.name] = (0, ring.depth - 1)
    pipelines.at(low, used, ring.slot)
    groups = _running(low, rest, used)
    out: Body = []
    before = set(low.flight)
    if before & {x.buffer for s in rest if isinstance(s, tile.Mma) for x in (s.acc, s.a)} or not groups:
        out += wgmma.finish(low, scope)
    low.blank |= dict.fromkeys(low.blank, op("eq", var, const(0)))
    body: Body = [k.Call("mlc_mbarrier_wait", (), (k.Address(ring.full, ring.slot), ring.phase), (ring.full,))]
    low.adding = ""
    body += low.loop_body(f, rest, inner)
    warp_first = op("eq", low.lane(), const(0))
    if groups:
        last = Var(low.fresh("last"))
        inner.ranges[last.name] = (0, ring.depth - 1)
        out.append(k.Declare(last.name, const(0)))
        arrive = k.Call("mlc_mbarrier_arrive", (), (k.Address(ring.empty, last),), (ring.empty,))
        body.append(k.Call("mlc_wgmma_wait", (groups,), ()))
        body.append(k.If(both(warp_first, op("lt", const(0), var)), (arrive,)))
        body.append(k.Assign(last.name, ring.slot))
        after = [*wgmma.finish(low, inner), k.If(both(warp_first, op("lt", const(0), extent)), (arrive,))]
    else:
        arrive = k.Call("mlc_mbarrier_arrive", (), (k.Address(ring.empty, ring.slot),), (ring.empty,))
        body += wgmma.finish(low, inner)
        if not all(wgmma.is_asynchronous(low, s) for s in rest if tile.buffers((s,)) & used):
            body.append(k.Barrier("warp"))
        body.append(k.If(warp_first, (arrive,)))
        after = []
    body += _next(ring.slot, ring.phase, ring.depth)
    return [*out, k.For(var.name, const(0), extent, 1, tuple(body)), *after]


def _running(low: Lowering, rest: tuple[Stmt, ...], used: frozenset[str]) -> int:
    """How many groups of products an iteration starts, where they may run into the next one; else 0."""
    products = [s for s in rest if isinstance(s, tile.Mma)]
    if not products or not all(wgmma.is_asynchronous(low, s) for s in products):
        return 0
    registers = {x.buffer for s in products for x in (s.acc, s.a) if x.buffer in low.fragments}
    others = [s for s in rest if s not in products and not isinstance(s, tile.Alloc | Let)]
    inside = {n.tensor.name for s in rest for n in s.walk() if isinstance(n, tile.Alloc)}
    if inside & registers or any(tile.buffers((s,)) & (registers | used) for s in others):
        return 0
    return len(products)
