"""CPU rows with inner loops and an operand that is contiguous across the rows.

As many rows as share a cache line are transposed at a time, by shuffles between vectors, into a tile that stays in the
near caches. The inner loops then run along contiguous elements of the tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis import access
from compiler.ir.expr import Const, Load, Var, dim, static
from compiler.ir.multiples import ceildiv
from compiler.ir.statement import Store
from compiler.ir.tensor import Tensor
from compiler.schedule import names as naming
from compiler.schedule.cost import cpu as cost
from compiler.schedule.space.cpu.nests import Group, Nest, touched
from compiler.schedule.space.cpu.turned import axis
from compiler.schedule.steps import Flatten, Reorder, Split, Stage, Step


@dataclass(frozen=True)
class _Operand:
    """A buffer that is contiguous along rows; `rows` and `inside` are its axes for the rows and for the inner loops."""

    tensor: Tensor
    rows: int
    inside: int

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def length(self) -> int:
        """Elements of a row."""
        return static(self.tensor.shape[self.inside])

    @property
    def pad(self) -> int:
        """Padding that puts rows an odd number of cache lines apart, so that columns use all cache sets."""
        lines = ceildiv(self.length, self.together)
        return (lines + 1 - lines % 2) * self.together - self.length

    @property
    def together(self) -> int:
        """How many rows share a cache line."""
        return cost.LINE // self.tensor.dtype.bytes

    def turned(self) -> Tensor:
        """The tensor with rows contiguous."""
        strides = list(self.tensor.strides)
        strides[self.inside] = dim(1)
        return self.tensor.replace(strides=tuple(strides))


def tiled(nest: Nest) -> tuple[Nest, float] | None:
    """The nest over tiles of transposed rows, and cycles of transposing per vector of accesses; None if it fails."""
    if not all(isinstance(g.extent, Const) for g in nest.groups) or any(len(path) > 1 for path in nest.paths):
        return None
    found = [(g, operands) for g in nest.groups if (operands := _operands(nest, g))]
    if len(found) != 1:
        return None
    group, operands = found[0]
    side = max(x.together for x in operands)
    held = side * sum(x.length * x.tensor.dtype.bytes for x in operands)
    if static(group.extent) < side or min(x.length for x in operands) < side or held > nest.memory.target.l2 // 2:
        return None
    elements = nest.count * sum(x.length for x in operands)
    turning = elements * cost.packing(nest.memory.target, along=False, direct=True)
    return _tiled(nest, group, operands, side), turning * len(nest.paths) / touched(nest.inside)


def _operands(nest: Nest, group: Group) -> list[_Operand]:
    """Buffers that are only read, contiguous along these rows and strided along the inner loops."""
    stored = {n.buffer for s in nest.inside for n in s.walk() if isinstance(n, Store)}
    tensors = [t for b, t in nest.memory.tensors.items() if b not in stored]
    return [x for t in tensors if (x := _operand(nest, group, t)) is not None]


def _operand(nest: Nest, group: Group, tensor: Tensor) -> _Operand | None:
    """The buffer as such an operand, if all of its loads are in the inner loops and use the same axes; else None."""
    everywhere = {n for s in nest.inside for n in s.walk() if isinstance(n, Load) and n.buffer == tensor.name}
    inside = [(n, path[-1]) for path in nest.paths for n in everywhere & set(path[-1].walk())]
    known = nest.known(path[-1] for path in nest.paths)
    places = {(axis(nest, n, group.loops), axis(nest, n, (leaf,))) for n, leaf in inside}
    addresses = [(access.address(n.index, tensor, known), leaf) for n, leaf in inside]
    along = {access.stride(place, Var(group.loops[-1].var)) for place, _ in addresses}
    across = {access.stride(place, Var(leaf.var)) for place, leaf in addresses}
    if {n for n, _ in inside} != everywhere or along != {1} or across & {0, 1, None} or len(places) > 1:
        return None
    rows, columns = places.pop()
    plain = tensor.dtype.kind != "bool" and not any(map(access.picked, everywhere))
    if rows is None or columns is None or not plain or not isinstance(tensor.shape[columns], Const):
        return None
    return _Operand(tensor, rows, columns)


def _tiled(nest: Nest, group: Group, operands: list[_Operand], side: int) -> Nest:
    """The nest over tiles of rows; each tile transposes its part of the operands first."""
    outer, inner = naming.pieces(group.name)
    pieces = Group(outer, dim(ceildiv(static(group.extent), side)), group.loops)
    others = [g for g in nest.groups if g is not group]
    steps: list[Step] = [Flatten(x.name, x.rows, len(group.loops)) for x in operands if len(group.loops) > 1]
    steps.append(Split(group.name, side, (outer, inner)))
    if group is not nest.groups[-1]:
        steps.append(Reorder((*(g.name for g in others), outer, inner)))
    steps += [
        Stage(x.name, f"{x.name}_turned", outer, "local", pad=x.pad, how="plain", turned=int(x.inside < x.rows))
        for x in operands
    ]
    tensors = nest.memory.tensors | {x.name: x.turned() for x in operands}
    return replace(
        nest,
        memory=replace(nest.memory, tensors=tensors),
        groups=(*others, pieces, Group(inner, dim(side), group.loops)),
        collapsed=(*nest.collapsed, *steps),
    )
