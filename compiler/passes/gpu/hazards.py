"""Which memory that threads share has been read and written since their last barrier."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.ir import tile
from compiler.ir.expr import Load
from compiler.ir.statement import Stmt, Store
from compiler.passes.gpu.scope import Scope


@dataclass(frozen=True)
class Uses:
    """Buffers that a statement reads and writes."""

    reads: frozenset[str]
    writes: frozenset[str]


def touched(s: Stmt, scope: Scope) -> Uses:
    """What a statement does to memory that other threads see: tiles in registers are a thread's own."""
    own = set(scope.registers or {}) | scope.ordered
    own |= {n.tensor.name for n in s.walk() if isinstance(n, tile.Alloc) and n.space != "shared"}
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


@dataclass
class Hazards:
    """What has happened since the last barrier."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def between(self, uses: Uses) -> bool:
        """Whether a barrier must stand before a statement with these uses."""
        return bool(self.writes & (uses.reads | uses.writes) or self.reads & uses.writes)

    def add(self, uses: Uses) -> None:
        self.reads |= uses.reads
        self.writes |= uses.writes

    def clear(self) -> None:
        self.reads, self.writes = set(), set()

    def copy(self) -> Hazards:
        return Hazards(set(self.reads), set(self.writes))

    def join(self, other: Hazards) -> None:
        """Either may have happened."""
        self.reads |= other.reads
        self.writes |= other.writes
