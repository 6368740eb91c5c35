"""The slots of a pipeline with producers, as statements of the roles that pass them on to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Var
from compiler.ir.roles import Advance, Arrive, Mbarrier, Ring, Wait
from compiler.ir.statement import Stmt

PART = tile.Bind("pipeline")  # a role's part of a pipeline


def is_part(s: Stmt) -> bool:
    """A pipeline as one role runs it."""
    return isinstance(s, tile.For) and s.bind is PART and any(isinstance(n, Wait | Arrive) for n in s.walk())


@dataclass(frozen=True)
class SlotRing:
    """The tiles of which there is one in each of `depth` slots, their mbarriers, and where each role is in the ring.

    `ready` are those of what others prepare, if they do.
    """

    depth: int
    tiles: tuple[str, ...]
    full: str
    empty: str
    ready: str
    places: Mapping[str, tuple[str, str]]

    def slot(self, role: str) -> Var:
        return Var(self.places[role][0])

    def begin(self, role: str) -> Stmt:
        """A role's first slot: all are empty, which is as if the phase before had ended."""
        return Ring(*self.places[role], self.depth, self.tiles, int(role == "copy"))

    def wait(self, until: str, role: str) -> Stmt:
        """Until the slot is full, empty or ready."""
        array = {"full": self.full, "empty": self.empty, "ready": self.ready}[until]
        return Wait(Mbarrier(array, self.slot(role)), Var(self.places[role][1]))

    def advance(self, role: str, last: str = "") -> Stmt:
        return Advance(*self.places[role], self.depth, last)
