"""Facts about a kernel before emission: its threads, and the places of its tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.launches import block_size
from compiler.ir.layout import Fragment
from compiler.ir.roles import Role
from compiler.ir.statement import Kernel, Stmt, within
from compiler.ir.tensor import Tensor
from compiler.targets.target import Target, instruction


@dataclass(frozen=True)
class Facts:
    """A kernel, its `tiles` by name, and the `fragments` among them.

    A block has `threads` that share loops over lanes. The warps of a `specialised` kernel have roles.
    """

    kernel: Kernel
    target: Target
    threads: int
    tiles: Mapping[str, Tensor]
    fragments: Mapping[str, Fragment]
    specialised: bool

    @property
    def name(self) -> str:
        """The kernel's name, for messages."""
        return self.kernel.name


def facts_of(kernel: Kernel, target: Target) -> Facts:
    """Collect the facts of a kernel. Raises ValueError for an accumulator without a layout."""
    allocs = list(within(kernel.body, tile.Alloc))
    threads = block_size(kernel.body)
    held = {n.tensor.name: n.layout for n in allocs if isinstance(n.layout, Fragment)}
    for n in within(kernel.body, tile.Mma):
        if n.acc.buffer not in held:
            raise ValueError(f"kernel {kernel.name}: {n.acc.buffer} has no layout, which `layouts` gives it")
    tiles = {n.tensor.name: n.tensor for n in allocs}
    specialised = any(within(kernel.body, Role))
    return Facts(kernel, target, threads, tiles, held, specialised)


def is_asynchronous(target: Target, s: Stmt) -> bool:
    """Whether a statement is a matmul that runs while the threads continue."""
    return isinstance(s, tile.Mma) and instruction(target, s.instruction).b_space == "shared"
