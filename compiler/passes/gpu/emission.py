"""What emitting a kernel's statements changes: names, arrays and barriers made, and what is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import DType
from compiler.ir.expr import Expr, const
from compiler.ir.statement import Stmt
from compiler.ir.tensor import Tensor
from compiler.passes.gpu import shared_memory
from compiler.passes.gpu.block_groups import Group
from compiler.passes.gpu.prologue import Prologue
from compiler.passes.gpu.scope import WARP, Scope
from compiler.passes.gpu.shared_memory import SharedTile

Body = list[k.Stmt]
Dispatch = Callable[["Emission", Stmt, Scope], Body]


@dataclass
class AsyncMatmuls:
    """Matmuls that run while threads go on: arrays that they add to, with their sizes and by `groups` in order, those
    that they `read`, the one `latest` added to; and accumulators that are to begin at zero, with where they do.

    In a loop that would end while some run, `more` says whether another iteration follows; where it has ended, `idle`.
    `blanked` is what sets arrays to zero that were to begin in a loop, if that had no iteration.
    """

    running: dict[str, int] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    latest: str = ""
    blank: dict[str, Expr] = field(default_factory=dict)
    blanked: dict[str, k.For] = field(default_factory=dict)
    more: Expr | None = None
    idle: bool = False


@dataclass(kw_only=True)
class Emission(Prologue):
    """`dispatch` emits one statement.

    `scratch` are arrays through which the warps of a block combine what they have. `shared` says where tiles lie, in
    the slot of a pipeline that is under way; `group` is of blocks that make parts of one result.
    """

    dispatch: Dispatch
    scratch: dict[str, tuple[DType, int]] = field(default_factory=dict)
    shared: dict[str, SharedTile] = field(default_factory=dict)
    group: Group | None = None
    matmuls: AsyncMatmuls = field(default_factory=AsyncMatmuls)

    @property
    def exchanged(self) -> tuple[Tensor, ...]:
        """Temporaries of this function alone: parts of a result, and the tickets of those that made them."""
        return self.group.memory if self.group is not None else ()

    def allocate(self, s: tile.Alloc, slots: int = 1) -> None:
        """Shared memory for a tile; raises ValueError where a pipeline needs it another number of times."""
        if s.slots != slots:
            raise ValueError(f"kernel {self.facts.name}: tile {s.tensor.name} has {s.slots} slots instead of {slots}")
        size = shared_memory.size_of(s.tensor, s.swizzle)
        self.taken.add(s.tensor.name)
        self.shared[s.tensor.name] = SharedTile(s.tensor, s.tensor.name, s.swizzle, size, const(0))
        align = shared_memory.alignment(s.swizzle)
        self.arrays.append(k.Array(s.tensor.name, s.tensor.dtype, slots * size, "shared", align))

    def scratch_for(self, dtype: DType, threads: int, size: int = WARP) -> str:
        """Shared memory for one exchange between warps, which none before it uses; nothing within a warp."""
        if threads <= WARP:
            return ""
        name = self.fresh(f"scratch_{dtype.name}")
        self.scratch[name] = dtype, size
        return name
