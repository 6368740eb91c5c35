"""The axes along which an equation accesses adjacent elements in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.ir.expr import Load, Var, dim, loads
from compiler.ir.tensor import Equation, Map, Tensor, expressions


@dataclass(frozen=True)
class Neighbours:
    """The axes, including reduced ones, that occur in the contiguous index of a load of an equation.

    The contiguous index of a tensor in `tensors` is the one of stride 1. Others are taken as row-major, although a
    later pass may lay them out otherwise; with `known_only`, they do not count, nor do tensors that are broadcast. Maps
    in `made` are seen through.
    """

    tensors: Mapping[str, Tensor]
    made: Mapping[str, Equation]
    known_only: bool = False
    found: dict[str, set[str]] = field(default_factory=dict)  # by equation, so far

    def axes(self, e: Equation) -> set[str]:
        """The names of these axes of an equation."""
        if e.name not in self.found:
            rank = len(e.axes) + len(getattr(e, "over", ()))
            every = (self._axes_of_load(load, rank) for x in expressions(e) for load in set(loads(x)))
            self.found[e.name] = set[str]().union(*every)
        return self.found[e.name]

    def _axes_of_load(self, load: Load, rank: int) -> set[str]:
        source, places = self.made.get(load.buffer), range(len(load.index))
        if isinstance(source, Map) and not (self.known_only and load.buffer in self.tensors):
            axes = self.axes(source)
            contiguous = [n for n in places if source.axes[n].name in axes]
        elif self.known_only and (load.buffer not in self.tensors or len(load.index) < rank):
            contiguous = []
        elif load.buffer in self.tensors:
            contiguous = [n for n in places if self.tensors[load.buffer].strides[n] is dim(1)]
        else:
            contiguous = [*places][-1:]
        return {v.name for n in contiguous for v in load.index[n].walk() if isinstance(v, Var)}
