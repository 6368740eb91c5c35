"""The axes along which an equation goes from neighbour to neighbour in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compiler.ir.expr import Const, Load, Var, loads
from compiler.ir.tensor import Equation, Map, Tensor, expressions


def axes_of_neighbours(e: Equation, inputs: Mapping[str, Tensor], made: Mapping[str, Equation]) -> set[str]:
    """Names of the axes of an equation, those that it reduces too, in the index of the last axis in memory of what it
    loads: of an input by its strides, of what is in memory row by row else. Maps of `made` are seen through."""
    return {v.name for x in expressions(e) for load in loads(x) for v in _last(load, inputs, made)}


def _last(load: Load, inputs: Mapping[str, Tensor], made: Mapping[str, Equation]) -> Iterator[Var]:
    found, source = made.get(load.buffer), inputs.get(load.buffer)
    for n, i in enumerate(load.index):
        if isinstance(found, Map):
            near = found.axes[n].name in axes_of_neighbours(found, inputs, made)
        elif source is not None:
            near = source.strides[n] is Const(1, source.strides[n].dtype)
        else:
            near = n == len(load.index) - 1
        if near:
            yield from (v for v in i.walk() if isinstance(v, Var))
