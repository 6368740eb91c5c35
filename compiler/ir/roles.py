"""Warp specialisation in Tile IR: statements that give roles to warps of a block, and their mbarrier protocol.

```
full = mbarriers(2, arrivals=1)
empty = mbarriers(2, arrivals=4)
with role("compute", first=0, threads=128):
    slot, phase = ring(2, t)
    for r in pipeline(16, reduce):
        wait(full[slot], phase)
        ...
        arrive(empty[slot])
        advance(slot, phase, 2)
with role("copy", first=128, threads=1):
    slot, phase = ring(2, t, phase=1)
    for r in pipeline(16, reduce):
        wait(empty[slot], phase)
        expect(full[slot], 4096)
        copy(t[0: +32, 0: +32], x[r * 32: +32, 0: +32], "tma", full[slot])
        advance(slot, phase, 2)
```
Consecutive roles run concurrently, each in order; the threads of the first role execute the statements after them. An
mbarrier is in phase 0 or 1. The phase completes when all its arrivals have happened and all expected bytes have come;
then the other phase begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, Var
from compiler.ir.node import Node
from compiler.ir.statement import Stmt

KINDS = ("compute", "copy", "prepare")


def side_by_side(roles: Iterable[tuple[str, Iterator[str]]], changes: Callable[[], object]) -> str:
    """Run roles round-robin, each until it yields what it waits for; return what they wait for in a deadlock, or "".

    It is a deadlock if in one round no role ends and the state of the mbarriers, given by `changes`, stays the same.
    """
    left = list(roles)
    while left:
        before = changes()
        waiting = [(kind, steps, next(steps, "")) for kind, steps in left]
        left = [(kind, steps) for kind, steps, what in waiting if what]
        if len(left) == len(waiting) and changes() == before:
            return " and ".join(f"{kind} for {what}" for kind, _, what in waiting)
    return ""


class Mbarrier(Node):
    """One of an array of mbarriers."""

    array: str
    slot: Expr


class Role(Stmt):
    """The code of `threads` threads of a block from number `first` on; `kind` is one of KINDS.

    Each has `registers` registers; 0 for the number that the block was launched with.
    """

    kind: str
    first: int
    threads: int
    registers: int
    body: tuple[Stmt, ...]


class One(Stmt):
    """Code that one of the role's threads executes for all."""

    body: tuple[Stmt, ...]


class RingStmt(Stmt):
    """A statement of the protocol that passes pipeline slots between roles."""


class Mbarriers(RingStmt):
    """An array of `count` mbarriers with `arrivals` arrivals per phase, initialised before the block's work.

    If `blocks` is not 1, threads of so many blocks, a cluster, arrive at the mbarriers of each.
    """

    name: str
    count: int
    arrivals: int
    blocks: int = 1


class Ring(RingStmt):
    """A role's position in a ring of `depth` slots: variables for the slot, if `depth` > 1, and for the phase.

    From here on, each of `tiles` refers to its copy in that slot. `start` is the initial phase.
    """

    slot: str
    phase: str
    depth: int
    tiles: tuple[str, ...] = ()
    start: int = 0


class Advance(RingStmt):
    """Advance to the next slot; after the last one, to the first in the other phase. `last` receives the old slot."""

    slot: str
    phase: str
    depth: int
    last: str = ""


class Wait(RingStmt):
    """Wait until the phase of that parity has completed."""

    barrier: Mbarrier
    phase: Expr


class Arrive(RingStmt):
    """Each warp of the role arrives once."""

    barrier: Mbarrier


class Expect(RingStmt):
    """One thread arrives, and announces `bytes` bytes."""

    barrier: Mbarrier
    bytes: int


def verify(
    s: RingStmt, mbarriers: dict[str, int], check: Callable[..., None], bind: Callable[[str], None], where: str
) -> tuple[Var, ...]:
    """Verify a statement by `check` of expressions and `bind` of new names; return new variables. Raises ValueError."""
    match s:
        case Mbarriers(name, count, arrivals, blocks):
            bind(name)
            mbarriers[name] = count
            if count < 1 or arrivals < 1 or blocks < 1:
                raise ValueError(f"{where}: {name} are {count} mbarriers for {arrivals} arrivals")
        case Ring(slot, phase, depth, _, start):
            if depth < 1 or start not in (0, 1) or (depth > 1 and not slot):
                raise ValueError(f"{where}: a ring of {depth} slots begins in phase {start}")
            made = tuple(Var(n, i64) for n in (slot, phase) if n)
            for v in made:
                bind(v.name)
            return made
        case Advance(slot, phase, _, last):
            check(*(Var(n, i64) for n in (slot, phase, last) if n))
        case Wait(barrier) | Arrive(barrier) | Expect(barrier):
            if barrier.array not in mbarriers:
                raise ValueError(f"{where}: {barrier.array} are no mbarriers")
            check(barrier.slot, *([s.phase] if isinstance(s, Wait) else []))
    return ()
