"""The ring of a pipeline with producers: statements by which roles pass its slots to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Var
from compiler.ir.roles import Advance, Arrive, Mbarrier, Ring, Wait
from compiler.ir.statement import Stmt

PART = tile.Bind("pipeline")  # the binding of a role's part of a pipeline


def is_part(s: Stmt) -> bool:
    """Whether a statement is one role's part of a pipeline."""
    return isinstance(s, tile.For) and s.bind is PART and any(isinstance(n, Wait | Arrive) for n in s.walk())


@dataclass(frozen=True)
class SlotRing:
    """A ring: tiles with one copy in each of `depth` slots, their mbarriers, and each role's slot and phase variables.

    `ready` is the array of mbarriers of prepared slots, or empty.
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
        """Declare a role's position. All slots are empty, as if a phase had ended before."""
        return Ring(*self.places[role], self.depth, self.tiles, int(role == "copy"))

    def wait(self, until: str, role: str) -> Stmt:
        """Wait until the slot is full, empty or ready."""
        array = {"full": self.full, "empty": self.empty, "ready": self.ready}[until]
        return Wait(Mbarrier(array, self.slot(role)), Var(self.places[role][1]))

    def advance(self, role: str, last: str = "") -> Stmt:
        return Advance(*self.places[role], self.depth, last)
