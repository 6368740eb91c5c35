"""The axes along which an equation accesses adjacent elements in memory."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.ir.expr import Load, Var, dim, loads
from compiler.ir.tensor import Equation, Map, Tensor, expressions


def axes_of_neighbours(e: Equation, inputs: Mapping[str, Tensor], made: Mapping[str, Equation]) -> set[str]:
    """The names of the axes, including reduced ones, that occur in the contiguous index of a load of the equation.

    The contiguous index of an input is the one of stride 1; other tensors are row-major. Maps in `made` are seen
    through.
    """
    return _axes(e, inputs, made, {})


def _axes(
    e: Equation, inputs: Mapping[str, Tensor], made: Mapping[str, Equation], known: dict[str, set[str]]
) -> set[str]:
    if e.name not in known:
        found = (_axes_in_contiguous_index(load, inputs, made, known) for x in expressions(e) for load in set(loads(x)))
        known[e.name] = set[str]().union(*found)
    return known[e.name]


def _axes_in_contiguous_index(
    load: Load, inputs: Mapping[str, Tensor], made: Mapping[str, Equation], known: dict[str, set[str]]
) -> set[str]:
    source, places = made.get(load.buffer), range(len(load.index))
    if isinstance(source, Map):
        axes = _axes(source, inputs, made, known)
        contiguous = [n for n in places if source.axes[n].name in axes]
    elif load.buffer in inputs:
        contiguous = [n for n in places if inputs[load.buffer].strides[n] is dim(1)]
    else:
        contiguous = [*places][-1:]
    return {v.name for n in contiguous for v in load.index[n].walk() if isinstance(v, Var)}
