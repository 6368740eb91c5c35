"""Hazards: accesses of statements to shared memory, and those that no barrier or fence has ordered yet."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.expr import Load
from compiler.ir.statement import Stmt, Store

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Uses:
    """The buffers that a statement reads and writes."""

    reads: frozenset[str] = NONE
    writes: frozenset[str] = NONE


def accesses_of(s: Stmt, own: Set[str]) -> Uses:
    """The accesses of a statement to memory visible to other threads; `own` buffers are private."""
    reads: set[str] = set()
    writes: set[str] = set()
    for n in s.walk():
        match n:
            case Load(buffer):
                reads.add(buffer)
            case Store(buffer):
                writes.add(buffer)
            case tile.Copy(target, source, _):
                reads.add(source.buffer)
                writes.add(target.buffer)
            case tile.Mma(_, acc, a, b):
                reads |= {a.buffer, b.buffer}
                writes.add(acc.buffer)
    return Uses(frozenset(reads - own), frozenset(writes - own))


def stored_buffers(s: Stmt) -> set[str]:
    """The buffers that threads store to, rather than the copy engine."""
    copied = {n.target.buffer for n in s.walk() if isinstance(n, tile.Copy) and n.how != "tma"}
    return copied | {n.buffer for n in s.walk() if isinstance(n, Store)}


@dataclass(frozen=True)
class Pending:
    """Accesses since the last barrier.

    `unfenced` are the stores since the last fence, `fenced` those before it that no barrier has followed.
    """

    reads: frozenset[str] = NONE
    writes: frozenset[str] = NONE
    unfenced: frozenset[str] = NONE
    fenced: frozenset[str] = NONE

    def between(self, uses: Uses) -> bool:
        """Whether a statement with these uses needs a barrier before it."""
        return bool(self.writes & (uses.reads | uses.writes) or self.reads & uses.writes)

    def add(self, uses: Uses) -> Pending:
        return replace(self, reads=self.reads | uses.reads, writes=self.writes | uses.writes)

    def after(self, what: str) -> Pending:
        """The accesses still pending after a Sync."""
        match what:
            case "barrier":
                return Pending(unfenced=self.unfenced)
            case "fence_async":
                return replace(self, unfenced=NONE, fenced=self.fenced | self.unfenced)
        return self

    def join(self, other: Pending) -> Pending:
        """The union, where either may have happened."""
        return replace(self.add(Uses(other.reads, other.writes)), fenced=self.fenced | other.fenced)
