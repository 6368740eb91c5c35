"""Give warps roles in kernels whose pipelines have producers.

```
for r in pipeline(16, reduce, depth=2, producers=1): t = shared(…); stage "copy": copy(t, x[r]); mma(acc, t)
```
becomes
```
t = shared(…, slots=2); full = mbarriers(2); empty = mbarriers(2)
role "compute": for r: wait(full[slot]); mma(acc, t); arrive(empty[slot]); advance
role "copy": for r: wait(empty[slot]); expect(full[slot]); copy(t, x[r], full[slot]); advance
```
All roles run the same loops around pipelines. A slot is full once its bytes have arrived, and empty once all computing
warps have signalled so. Warps that prepare copied tiles signal to the computing ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from compiler.ir import tile
from compiler.ir.expr import Const, Var, const, fresh, names, op, static
from compiler.ir.launches import cluster_loop
from compiler.ir.roles import Advance, Arrive, Expect, Mbarrier, Mbarriers, One, Ring, RingStmt, Role, Wait
from compiler.ir.statement import If, Init, Kernel, Let, Program, Stmt, Store, within
from compiler.passes.gpu import block_groups, overlap, stages
from compiler.passes.gpu.facts import Facts, facts_of, is_asynchronous
from compiler.passes.gpu.fragment_prefetch import bound_names
from compiler.passes.gpu.fragments import WARP
from compiler.passes.gpu.rings import PART, SlotRing
from compiler.targets.target import Target

Body = tuple[Stmt, ...]

BARRIER = tile.Sync("barrier")


def warp_roles(program: Program, target: Target) -> Program:
    """Create roles. Raises ValueError for producers that have nothing to copy by themselves."""
    return program.replace(kernels=tuple(_kernel(kernel, target) for kernel in program.kernels))


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    if not stages.has_producers(kernel.body):
        return kernel
    taken = {p.name for p in kernel.params} | set(bound_names(kernel.body))
    taken |= {n.name for s in kernel.body for n in s.walk() if isinstance(n, Var)}
    return kernel.replace(body=_launch_body(kernel.body, facts_of(kernel, target), taken))


def _launch_body(body: Body, facts: Facts, taken: set[str]) -> Body:
    """Roles are inside of all loops over blocks; blocks that split a reduction combine their parts after the roles."""
    match body:
        case (tile.For(bind=tile.Bind("blocks" | "cluster"), body=inner) as f,):
            return (f.replace(body=_launch_body(inner, facts, taken)),)
    found = block_groups.split(body)
    if found is None:
        return _Roles(body, facts, taken).made()
    held, parts, after = found
    return (held, parts.replace(body=_Roles(parts.body, facts, taken).made()), *after)


class _Roles:
    """The rings of a body's pipelines, and the statements of each role."""

    def __init__(self, body: Body, facts: Facts, taken: set[str]) -> None:
        self.body, self.facts, self.taken = body, facts, taken
        self.pipes = [n for n in within(body, tile.For) if stages.is_specialised(n)]
        self.shared = {n.tensor.name: n for n in within(body, tile.Alloc)}
        self.start: list[Stmt] = []
        self.own: list[Stmt] = []  # the positions of the computing threads in rings
        is_shared = any(n.multicast is not None for n in within(body, tile.Copy))
        cluster = cluster_loop(facts.kernel.body) if is_shared else None
        self.blocks = static(cluster.extent) if cluster is not None else 1
        self.rings = {f.var: self._make_rings(f) for f in self.pipes}

    def made(self) -> Body:
        facts, given = self.facts, dict(self.pipes[0].bind.args)
        kept, wanted = given.get("producer_registers", 0), given.get("consumer_registers", 0)
        rings = [ring for some in self.rings.values() for ring in some]
        self.own = [ring.begin("compute") for ring in rings]
        computing = self.computing(self.body)
        copying = self._loops_around(self.body, self._copy_pipeline)
        made = [
            Role("compute", 0, facts.threads, wanted, (*self.own, *computing)),
            Role("copy", facts.threads, 1, kept, (*(ring.begin("copy") for ring in rings), *copying)),
        ]
        warps = stages.producer_warps(self.pipes) - 1
        if warps:
            begin = (ring.begin("prepare") for ring in rings if ring.ready)
            preparing = (*begin, *self._loops_around(self.body, self._prepare_pipeline))
            made.append(Role("prepare", facts.threads + WARP, warps * WARP, kept, preparing))
        return (*self.start, *made)

    def _make_rings(self, f: tile.For) -> list[SlotRing]:
        """The rings of a pipeline in the order in which they are filled, each with its tiles in every slot."""
        used, depth = stages.slotted_tiles(f, self.facts.name), dict(f.bind.args).get("depth", 1)
        self.start += [s for s in f.body if isinstance(s, tile.Alloc) and s.tensor.name in used]
        preparing = dict(f.bind.args)["producers"] - 1 if stages.prepare_statements(f) else 0
        made = []
        for n, tiles in enumerate(overlap.ring_tiles(f, used, self.facts.name)):
            full, empty = fresh("full", self.taken), fresh("empty", self.taken)
            ready = fresh("ready", self.taken) if preparing and not n else ""
            arrivals = self.facts.threads // WARP * self.blocks
            self.start += [Mbarriers(full, depth, 1), Mbarriers(empty, depth, arrivals, self.blocks)]
            self.start += [Mbarriers(ready, depth, preparing)] if ready else []
            stems = ("slot", "phase", "slot_asked", "phase_asked", "slot_prepared", "phase_prepared")
            a, b, c, d, e, g = (fresh(stem, self.taken) for stem in stems)
            order = tuple(s.tensor.name for s in f.body if isinstance(s, tile.Alloc) and s.tensor.name in tiles)
            places = {"compute": (a, b), "copy": (c, d), "prepare": (e, g)}
            made.append(SlotRing(depth, order, full, empty, ready, places))
        return made

    # ---- the threads that compute

    def computing(self, body: Body) -> Body:
        """The statements of computing threads: all but the stages. They wait for a copy outside of pipelines before the
        first statement that uses its target."""
        out: list[Stmt] = []
        waits: dict[str, Body] = {}
        for s in body:
            used = tile.buffers((s,))
            for name in [name for name in waits if name in used]:
                out += waits.pop(name)
            match s:
                case tile.For() if stages.is_specialised(s):
                    out += self._compute_pipeline(s)
                case tile.For(body=inner) | If(body=inner):
                    out.append(s.replace(body=self.computing(inner)))
                case tile.Copy(target, _, "tma") if self._is_shared(target.buffer):
                    issued, waits[target.buffer] = self._awaited_copy(s)
                    out += issued
                case _:
                    out.append(s)
        return (*out, *(s for wait in waits.values() for s in wait))

    def _is_shared(self, buffer: str) -> bool:
        return buffer in self.shared and self.shared[buffer].space == "shared"

    def _awaited_copy(self, s: tile.Copy) -> tuple[Body, Body]:
        """A copy outside of pipelines that one thread issues, and the wait of all until it has arrived."""
        array, parity = fresh(f"{s.target.buffer}_here", self.taken), fresh("parity", self.taken)
        self.own.append(Ring("", parity, 1))
        here = Mbarrier(array, const(0))
        asked = One((Expect(here, self._bytes(s)), s.replace(full=here)))
        return (Mbarriers(array, 1, 1), asked), (Wait(here, Var(parity)), Advance("", parity, 1))

    def _bytes(self, s: tile.Copy) -> int:
        """The bytes that a copy to shared memory transfers: whole boxes, even beyond the tensor's edge."""
        return math.prod(tile.extents(s.target)) * self.shared[s.target.buffer].tensor.dtype.bytes

    def _compute_pipeline(self, f: tile.For) -> Body:
        """A pipeline without its copies: wait until a slot is full, compute, release it.

        If only matmuls use the slots, a slot is released one iteration later, when the next matmuls are in flight; this
        needs at least two slots.
        """
        rings, facts = self.rings[f.var], self.facts
        ring, used = rings[0], frozenset(name for r in rings for name in r.tiles)
        rest = stages.without_tiles(stages.split(f)[1], used)
        if stages.has_overlap(f):
            return self.computing(overlap.overlapped_loop(f, rest, (rings[0], rings[1]), facts, self.taken))
        groups = _matmuls_in_flight(facts, rest, used) if min(r.depth for r in rings) > 1 else 0
        wait = ring.wait("full", "compute")
        inner = [wait, *_insert_ready_wait(self.computing(rest), stages.prepare_statements(f), ring)]
        var, slot = Var(f.var), ring.slot("compute")
        if groups:
            last = fresh("last", self.taken)
            free = Arrive(Mbarrier(ring.empty, Var(last)))
            inner += [tile.Sync("wait_matmuls", groups), If(op("lt", const(0), var), (free,))]
            inner.append(ring.advance("compute", last))
            begun = op("lt", const(0), f.extent)
            behind = free if isinstance(begun, Const) else If(begun, (free,))
            loop = f.replace(bind=PART, body=tuple(inner))
            return Init(last, const(0)), loop, tile.Sync("wait_matmuls"), behind
        if any(is_asynchronous(facts.target, n) for s in rest for n in s.walk()):
            inner.append(tile.Sync("wait_matmuls"))
        if not all(is_asynchronous(facts.target, s) for s in rest if tile.buffers((s,)) & used):
            inner.append(tile.Sync("warp_barrier"))
        inner += [Arrive(Mbarrier(ring.empty, slot)), ring.advance("compute")]
        return (f.replace(bind=PART, body=tuple(inner)),)

    # ---- the others

    def _loops_around(self, body: Body, act: Callable[[tile.For], Body]) -> Body:
        """The loops around pipelines and the values that they depend on, with `act` applied to the pipelines."""
        kept = [s for s in body if stages.has_producers((s,))]
        made: list[Stmt] = []
        for s in stages.computed_from(body, set().union(*(_names_needed(s) for s in kept)), kept):
            match s:
                case tile.For() if stages.is_specialised(s):
                    made += act(s)
                case tile.For(body=inner) | If(body=inner):
                    made.append(s.replace(body=self._loops_around(inner, act)))
                case _:
                    made.append(s)
        return tuple(made)

    def _copy_pipeline(self, f: tile.For) -> Body:
        """The pipeline of the thread that issues copies."""
        copied, _ = stages.split(f)
        inner = [s for s in copied if not isinstance(s, tile.Copy)]
        for ring in self.rings[f.var]:
            full = Mbarrier(ring.full, ring.slot("copy"))
            own = [s for s in copied if isinstance(s, tile.Copy) and s.target.buffer in ring.tiles]
            inner += [ring.wait("empty", "copy"), Expect(full, sum(map(self._bytes, own)))]
            inner += [*(s.replace(full=full) for s in own), ring.advance("copy")]
        return (f.replace(bind=PART, body=tuple(inner)),)

    def _prepare_pipeline(self, f: tile.For) -> Body:
        """The pipeline of the producer's other warps: their own loops before the matmuls."""
        own, ring = stages.prepare_statements(f), self.rings[f.var][0]
        if not own:
            return ()
        read = set().union(*(names(x) for x in own))
        lets = [s for s in f.body if isinstance(s, Let) and s.name in read]
        inner = [ring.wait("full", "prepare"), *lets, *own, tile.Sync("fence_async"), tile.Sync("warp_barrier")]
        inner += [Arrive(Mbarrier(ring.ready, ring.slot("prepare"))), ring.advance("prepare")]
        return (f.replace(bind=PART, body=tuple(inner)),)


def _names_needed(s: Stmt) -> set[str]:
    """The names that the producers' part of a statement depends on."""
    match s:
        case tile.For() if stages.is_specialised(s):
            copied, _ = stages.split(s)
            return names(s.extent).union(*(names(c) for c in (*copied, *stages.prepare_statements(s))))
        case tile.For(_, extent, _, _, body):
            return names(extent).union(*(_names_needed(c) for c in body))
        case If(cond, body):
            return names(cond).union(*(_names_needed(c) for c in body))
        case Let(_, value):
            return names(value)
    return set()


def _matmuls_in_flight(facts: Facts, rest: Body, used: frozenset[str]) -> int:
    """The number of matmul groups that an iteration starts, if they may run into the next one; else 0."""
    matmuls = [s for s in rest if isinstance(s, tile.Mma)]
    if not matmuls or not all(is_asynchronous(facts.target, s) for s in matmuls):
        return 0
    registers = {x.buffer for s in matmuls for x in (s.acc, s.a) if x.buffer in facts.fragments}
    others = [s for s in rest if s not in matmuls and not isinstance(s, tile.Alloc | Let)]
    inside = {n.tensor.name for n in within(rest, tile.Alloc)}
    if inside & registers or any(tile.buffers((s,)) & (registers | used) for s in others):
        return 0
    return len(matmuls)


def _insert_ready_wait(rest: Body, prepared: Body, ring: SlotRing) -> Body:
    """Insert the wait for prepared tiles before the first statement that uses them, and the barrier before it."""
    made = {n.buffer for n in within(prepared, Store)}
    at = next((n for n, s in enumerate(rest) if tile.buffers((s,)) & made), None)
    if at is None:
        return rest
    begin = at
    while begin and isinstance(rest[begin - 1], tile.Sync | RingStmt):
        begin -= 1
    at = begin if BARRIER in rest[begin:at] else at
    return (*rest[:at], ring.wait("ready", "compute"), *rest[at:])
