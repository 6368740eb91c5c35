"""Mutable state of emission: allocated names, arrays and barriers, and the asynchronous operations in flight."""

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
    """Asynchronous matmuls in flight.

    `running` has their accumulators with sizes, `groups` the accumulators by commit group, `read` the arrays that they
    read, `latest` the accumulator of the latest. `blank` has the accumulators that start at zero, with the condition
    under which a matmul is the first. In a loop that ends with matmuls in flight, `more` tells whether another
    iteration follows; after it, `idle` is set. `blanked` has the statements that zero accumulators if the loop that
    starts them has no iteration.
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
    """The state of one function; `dispatch` emits one statement.

    `scratch` has arrays through which the warps of a block combine values. `shared` has the places of tiles, in the
    current slot of their pipeline. `group` is the group of blocks that split a reduction, `cluster` the number of
    blocks of a loop over a cluster.
    """

    dispatch: Dispatch
    scratch: dict[str, tuple[DType, int]] = field(default_factory=dict)
    shared: dict[str, SharedTile] = field(default_factory=dict)
    group: Group | None = None
    cluster: int = 1
    matmuls: AsyncMatmuls = field(default_factory=AsyncMatmuls)

    @property
    def exchanged(self) -> tuple[Tensor, ...]:
        """Temporaries of this function alone: partial results and the tickets of the blocks that made them."""
        return self.group.memory if self.group is not None else ()

    def allocate(self, s: tile.Alloc, slots: int = 1) -> None:
        """Allocate shared memory for a tile. Raises ValueError if the tile has another number of slots."""
        if s.slots != slots:
            raise ValueError(f"kernel {self.facts.name}: tile {s.tensor.name} has {s.slots} slots instead of {slots}")
        size = shared_memory.size_of(s.tensor, s.swizzle)
        self.taken.add(s.tensor.name)
        self.shared[s.tensor.name] = SharedTile(s.tensor, s.tensor.name, s.swizzle, size, const(0))
        align = shared_memory.alignment(s.swizzle)
        self.arrays.append(k.Array(s.tensor.name, s.tensor.dtype, slots * size, "shared", align))

    def scratch_for(self, dtype: DType, threads: int, size: int = WARP) -> str:
        """The name of new shared memory for an exchange between warps; "" within one warp, which needs none."""
        if threads <= WARP:
            return ""
        name = self.fresh(f"scratch_{dtype.name}")
        self.scratch[name] = dtype, size
        return name
