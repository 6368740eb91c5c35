"""Statements of Tile IR with which the warps of a block take roles, and what these tell each other by mbarriers.

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
Roles that follow each other run at the same time, each of them in order; what follows them, those threads do that the
first role has. An mbarrier is in a phase, 0 or 1, which ends when all have arrived that it was made for and all bytes
have come that these said to expect; the next one begins then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, Var
from compiler.ir.node import Node
from compiler.ir.statement import Stmt

KINDS = ("compute", "copy", "prepare")


def side_by_side(roles: Iterable[tuple[str, Iterator[str]]], changes: Callable[[], object]) -> str:
    """Runs roles in turns, each until it says what it waits for; what is said by those that wait for ever.

    They do where none ends in its turn, and what mbarriers were told, which `changes` says, stays as it was.
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
    """What so many `threads` of a block do, from number `first` on; one of KINDS.

    They have so many `registers` each; 0 for what the block was launched with.
    """

    kind: str
    first: int
    threads: int
    registers: int
    body: tuple[Stmt, ...]


class One(Stmt):
    """What one of the threads does for all that do the same."""

    body: tuple[Stmt, ...]


class RingStmt(Stmt):
    """What passes the slots of a pipeline from role to role."""


class Mbarriers(RingStmt):
    """An array of `count` mbarriers, each for so many `arrivals` in a phase, made ready before the block's work."""

    name: str
    count: int
    arrivals: int


class Ring(RingStmt):
    """Where a role is in a ring of `depth` slots: variables for the slot, where it needs one, and for the phase.

    From here on the role means by each of `tiles` the one in that slot.
    """

    slot: str
    phase: str
    depth: int
    tiles: tuple[str, ...] = ()
    start: int = 0


class Advance(RingStmt):
    """On to the next slot; behind the last one comes the first, with the other phase. `last` is the slot that was."""

    slot: str
    phase: str
    depth: int
    last: str = ""


class Wait(RingStmt):
    """Until the phase of that parity has ended."""

    barrier: Mbarrier
    phase: Expr


class Arrive(RingStmt):
    """Each warp of the role arrives once."""

    barrier: Mbarrier


class Expect(RingStmt):
    """One thread arrives, and says that so many bytes will come."""

    barrier: Mbarrier
    bytes: int


def verify(
    s: RingStmt, mbarriers: dict[str, int], check: Callable[..., None], bind: Callable[[str], None], where: str
) -> tuple[Var, ...]:
    """The variables that a statement makes; `check` is told expressions, `bind` new names. Raises ValueError."""
    match s:
        case Mbarriers(name, count, arrivals):
            bind(name)
            mbarriers[name] = count
            if count < 1 or arrivals < 1:
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
