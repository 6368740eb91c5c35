"""What statements do to memory that threads share, and what of it barriers and fences have not put in order yet."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.expr import Load
from compiler.ir.statement import Stmt, Store

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Uses:
    """Buffers that a statement reads and writes."""

    reads: frozenset[str] = NONE
    writes: frozenset[str] = NONE


def touched(s: Stmt, own: Set[str]) -> Uses:
    """What a statement does to memory that other threads see: what is a thread's `own` does not count."""
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


def stored(s: Stmt) -> set[str]:
    """Buffers that threads themselves store to, rather than the copy engine."""
    copied = {n.target.buffer for n in s.walk() if isinstance(n, tile.Copy) and n.how != "tma"}
    return copied | {n.buffer for n in s.walk() if isinstance(n, Store)}


@dataclass(frozen=True)
class Pending:
    """What was read and written since the last barrier; what threads have stored since the last fence, and what they
    have `fenced`, but not waited for each other since."""

    reads: frozenset[str] = NONE
    writes: frozenset[str] = NONE
    unfenced: frozenset[str] = NONE
    fenced: frozenset[str] = NONE

    def between(self, uses: Uses) -> bool:
        """Whether a barrier must stand before a statement with these uses."""
        return bool(self.writes & (uses.reads | uses.writes) or self.reads & uses.writes)

    def add(self, uses: Uses) -> Pending:
        return replace(self, reads=self.reads | uses.reads, writes=self.writes | uses.writes)

    def after(self, what: str) -> Pending:
        """What is left after a Sync."""
        match what:
            case "barrier":
                return Pending(unfenced=self.unfenced)
            case "fence_async":
                return replace(self, unfenced=NONE, fenced=self.fenced | self.unfenced)
        return self

    def join(self, other: Pending) -> Pending:
        """Either may have happened."""
        return replace(self.add(Uses(other.reads, other.writes)), fenced=self.fenced | other.fenced)
