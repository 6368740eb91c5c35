"""Verify that roles pass slots on correctly, by simulating a few iterations with concrete loop counters.

A role knows its own actions to be done, and those known to the roles that it has waited for (as vector clocks do). A
tile may be read once its writer is known to be done, and written once all its readers are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.ir import roles, tile
from compiler.ir.expr import Const, Expr, Var, const, substitute
from compiler.ir.roles import Advance, Arrive, Expect, Mbarrier, Mbarriers, One, Ring, RingStmt, Role, Wait
from compiler.ir.statement import If, Init, Program, Stmt, within
from compiler.passes.gpu.facts import is_asynchronous
from compiler.passes.gpu.hazards import Uses, accesses_of
from compiler.passes.gpu.rings import is_part
from compiler.targets.target import Target

Body = tuple[Stmt, ...]
Place = tuple[str, int]  # a tile and its slot
Known = dict[str, int]  # by actor, the number of its actions known to be done
TURNS = 2  # iterations of loops around pipelines, and of a pipeline after all slots were used


def verify(program: Program, target: Target) -> None:
    """Raise ValueError for a kernel whose roles may overtake each other or deadlock."""
    for kernel in program.kernels:
        own = list(within(kernel.body, Role))
        if own:
            sizes = {n.tensor.name: n.tensor.dtype.bytes for n in within(kernel.body, tile.Alloc)}
            run = _Simulation(f"kernel {kernel.name}", target, sizes)
            run.declare(list(within(kernel.body, Mbarriers)))
            run.simulate(own)


@dataclass
class _Barrier:
    """An mbarrier: arrivals and bytes left in the phase, phases ended, and what was known at their ends."""

    arrivals: int
    left: int
    bytes: int = 0
    ended: int = 0
    told: Known = field(default_factory=dict)
    known: Known = field(default_factory=dict)

    def tell(self, known: Known, arrivals: int, expected: int) -> None:
        _merge_knowledge(self.told, known)
        self.left, self.bytes = self.left - arrivals, self.bytes + expected
        if self.left == self.bytes == 0:
            self.left, self.ended, self.known = self.arrivals, self.ended + 1, dict(self.told)


@dataclass
class _RoleState:
    """One role during the simulation: its variables, the ring of each slot, and what it knows.

    `loose` has places that only some threads of a warp may have read; `unfenced` and `fenced` have places stored to,
    before and after a fence; `flying` has the places that matmuls in flight read.
    """

    role: Role
    values: dict[str, int] = field(default_factory=dict)
    rings: dict[str, Ring] = field(default_factory=dict)
    slots: dict[str, str] = field(default_factory=dict)
    parities: dict[str, str] = field(default_factory=dict)
    known: Known = field(default_factory=dict)
    loose: set[Place] = field(default_factory=set)
    unfenced: set[Place] = field(default_factory=set)
    fenced: set[Place] = field(default_factory=set)
    flying: list[list[Place]] = field(default_factory=list)
    waited: bool = True  # whether it has waited since the latest matmuls, all or all but some

    @property
    def used(self) -> set[Place]:
        """Places that some of the threads, or matmuls of theirs, may still use."""
        return {*self.loose, *self.unfenced, *self.fenced, *(p for group in self.flying for p in group)}

    def number(self, e: Expr) -> int | None:
        if isinstance(e, Var):
            return self.values.get(e.name)
        made = substitute(e, {Var(name): const(n) for name, n in self.values.items()})
        return int(made.value) if isinstance(made, Const) else None

    def place(self, buffer: str) -> Place:
        return buffer, self.values[self.slots[buffer]] if buffer in self.slots else 0

    def happens(self) -> tuple[str, int]:
        """Record one more action of this role."""
        kind = self.role.kind
        self.known[kind] = self.known.get(kind, 0) + 1
        return kind, self.known[kind]


@dataclass
class _Simulation:
    where: str
    target: Target
    sizes: dict[str, int]
    barriers: dict[str, list[_Barrier]] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)  # by array, whose threads arrive: this block stands for all
    watched: set[str] = field(default_factory=set)
    written: dict[Place, tuple[str, int]] = field(default_factory=dict)
    read: dict[Place, Known] = field(default_factory=dict)
    threads: list[_RoleState] = field(default_factory=list)
    rings: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by array of mbarriers, its ring's tiles
    deepest: int = 1
    uses: dict[Stmt, Uses] = field(default_factory=dict)

    def declare(self, arrays: list[Mbarriers]) -> None:
        for s in arrays:
            self.barriers[s.name] = [_Barrier(s.arrivals, s.arrivals) for _ in range(s.count)]
            self.blocks[s.name] = s.blocks

    def fail(self, problem: str) -> ValueError:
        return ValueError(f"{self.where}: {problem}")

    def simulate(self, own: list[Role]) -> None:
        inside = [n for r in own for n in r.walk()]
        self.watched = {x for n in inside if isinstance(n, Ring) for x in n.tiles}
        self.watched |= {n.target.buffer for n in inside if isinstance(n, tile.Copy) and n.full is not None}
        self.deepest = max((n.depth for n in inside if isinstance(n, Ring)), default=1)
        self.threads = [_RoleState(r) for r in own]
        said = roles.side_by_side([(t.role.kind, self.body(t.role.body, t)) for t in self.threads], self.ended)
        if said:
            raise self.fail(f"roles wait for ever: {said}")
        self.check_end()

    def ended(self) -> dict[str, list[int]]:
        return {name: [b.ended for b in some] for name, some in self.barriers.items()}

    def check_end(self) -> None:
        """Check that all roles have gone through the rings equally often, so that they can start again."""
        for name, some in self.barriers.items():
            if any(b.left != b.arrivals or b.bytes for b in some):
                raise self.fail(f"not all arrive at {name}")
        ended = self.ended()
        places: dict[tuple[str, ...], set[object]] = {}
        for t in self.threads:
            for ring in t.rings.values():
                turned = t.values[ring.phase] != ring.start
                places.setdefault(ring.tiles, set()).add((t.values[ring.slot], turned))
            if any(t.values[phase] != ended[array][0] % 2 for array, phase in t.parities.items()):
                raise self.fail(f"{t.role.kind} loses count of {', '.join(t.parities)}")
        turns: dict[tuple[str, ...], set[object]] = {}
        for array, tiles in self.rings.items():
            turns.setdefault(tiles, set()).add(tuple(ended[array]))
        for tiles, found in (*places.items(), *turns.items()):
            if len(found) > 1:
                raise self.fail(f"roles do not go as far through the slots of {', '.join(tiles)}")

    # ---- statements

    def body(self, body: Body, t: _RoleState) -> Iterator[str]:
        for s in body:
            match s:
                case RingStmt():
                    yield from self.ring(s, t)
                case tile.For(var, extent, body=inner) if _contains_signals(s):
                    for n in range(self.count(s, extent, t)):
                        t.values[var] = n
                        yield from self.body(inner, t)
                    t.values.pop(var, None)
                case If(cond, inner) if _contains_signals(s):
                    if t.number(cond) in (None, 1):
                        yield from self.body(inner, t)
                case One(inner):
                    yield from self.body(inner, t)
                case Init(name, Const(int() as value)):
                    t.values[name] = value
                case tile.Copy(full=Mbarrier() as full):
                    self.copy(s, full, t)
                case tile.Sync():
                    _sync(s, t)
                case _:
                    self.touch(s, t)

    def count(self, f: tile.For, extent: Expr, t: _RoleState) -> int:
        """Enough iterations for slots to be reused, whatever the extents."""
        if is_part(f):
            return self.deepest + TURNS
        n = t.number(extent)
        return TURNS if n is None else min(n, TURNS)

    def ring(self, s: RingStmt, t: _RoleState) -> Iterator[str]:
        match s:
            case Ring(slot, phase, _, tiles, start):
                t.values |= {slot: 0, phase: start}
                if slot:
                    t.rings[slot] = s
                t.slots |= dict.fromkeys(tiles, slot)
            case Advance(slot, phase, depth, last):
                now = t.values.get(slot, 0)
                t.values[last] = now
                if now == depth - 1:
                    t.values[phase] ^= 1
                t.values[slot] = (now + 1) % depth
                if last and slot in t.rings:
                    t.rings.setdefault(last, t.rings[slot])
            case Wait(barrier, phase):
                at = self.at(barrier, t)
                if isinstance(barrier.slot, Const) and isinstance(phase, Var):
                    t.parities[barrier.array] = phase.name
                while at.ended % 2 == t.number(phase):
                    yield barrier.array
                _merge_knowledge(t.known, at.known)
            case Arrive(barrier):
                self.check_released(barrier, t)
                self.tell(barrier, t, t.role.threads // 32 * self.blocks.get(barrier.array, 1), 0)
            case Expect(barrier, count):
                self.tell(barrier, t, 1, count)

    def at(self, b: Mbarrier, t: _RoleState) -> _Barrier:
        n = t.number(b.slot)
        if b.array not in self.barriers or n is None or n >= len(self.barriers[b.array]):
            raise self.fail(f"there is no mbarrier {b.array}[{n}]")
        if isinstance(b.slot, Var) and b.slot.name in t.rings:
            self.rings[b.array] = t.rings[b.slot.name].tiles
        return self.barriers[b.array][n]

    def tell(self, b: Mbarrier, t: _RoleState, arrivals: int, expected: int) -> None:
        at = self.at(b, t)
        at.tell(t.known, arrivals, expected)
        if at.left < 0:
            raise self.fail(f"more arrive at {b.array} than it waits for")

    def check_released(self, b: Mbarrier, t: _RoleState) -> None:
        """Check that all threads of a warp, and their matmuls, are done with a slot that the warp releases."""
        slot = t.number(b.slot)
        for buffer, n in t.used:
            if n == slot and buffer in t.slots:
                raise self.fail(f"a warp arrives at {b.array} while its threads or matmuls still use {buffer}")
        if not t.waited:
            raise self.fail(f"a warp arrives at {b.array}, and matmuls may still use what is there")

    def copy(self, s: tile.Copy, full: Mbarrier, t: _RoleState) -> None:
        place = t.place(s.target.buffer)
        self.may_write(place, t)
        engine = f"the engine that fills {full.array}[{t.number(full.slot)}]"
        at = self.at(full, t)
        self.written[place] = engine, at.ended + 1
        at.tell({**t.known, engine: at.ended + 1}, 0, -math.prod((self.sizes[place[0]], *tile.extents(s.target))))

    def touch(self, s: Stmt, t: _RoleState) -> None:
        if s not in self.uses:
            self.uses[s] = accesses_of(s, frozenset())
        writes = self.uses[s].writes & self.watched
        reads = self.uses[s].reads & self.watched
        for place in map(t.place, reads):
            if place[0] not in writes or self.is_filled(place):  # else each thread reads what it stored itself
                self.may_read(place, t)
        reads -= writes
        flying = is_asynchronous(self.target, s)
        if flying:
            t.flying.append([t.place(x) for x in reads])
            t.waited = False
        for place in map(t.place, reads):
            who, when = t.happens()
            self.read.setdefault(place, {})[who] = when
            if not flying:
                t.loose.add(place)
        for place in map(t.place, writes):
            self.may_write(place, t)
            self.written[place] = t.happens()
            t.unfenced.add(place)

    def is_filled(self, place: Place) -> bool:
        """Whether the copy engine wrote the place last."""
        who, _ = self.written.get(place, ("", 0))
        return bool(who) and all(who != t.role.kind for t in self.threads)

    def may_read(self, place: Place, t: _RoleState) -> None:
        who, when = self.written.get(place, ("", 1))
        unseen = any(place in x.unfenced | x.fenced for x in self.threads if x is not t)
        if t.known.get(who, 0) < when or unseen:
            raise self.fail(f"{t.role.kind} reads {place[0]} before it is known to be there")

    def may_write(self, place: Place, t: _RoleState) -> None:
        before = self.read.get(place, {})
        used = any(place in x.used for x in self.threads if x is not t)
        if used or any(t.known.get(who, 0) < when for who, when in before.items()):
            raise self.fail(f"{t.role.kind} writes {place[0]} while others still use it")


def _sync(s: tile.Sync, t: _RoleState) -> None:
    match s.what:
        case "wait_matmuls":
            t.flying, t.waited = t.flying[-s.pending :] if s.pending else [], True
        case "fence_async":
            t.fenced, t.unfenced = t.fenced | t.unfenced, set()
        case "warp_barrier":
            t.loose, t.fenced = set(), set()


def _contains_signals(s: Stmt) -> bool:
    """Whether a statement contains signals between roles."""
    return any(isinstance(n, RingStmt | One) for n in s.walk())


def _merge_knowledge(known: Known, more: Known) -> None:
    for who, n in more.items():
        known[who] = max(known.get(who, 0), n)
