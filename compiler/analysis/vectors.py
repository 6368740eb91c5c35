"""A loop bound to vectors of a CPU in; why its iterations cannot run so, and how wide vectors may be, out.

Schedules are made by these rules and held to them: whoever binds a loop asks them, and no pass makes vectors narrower.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.analysis.access import not_vectorizable
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor

NARROWEST = 4  # lanes below which vectors do not pay


def fitting_width(width: int, extent: Expr) -> int:
    """The widest vectors that are no longer than the loop, 1 for none: halves of `width`."""
    while isinstance(extent, Const) and width > extent.value:
        width //= 2
    return width if width >= NARROWEST else 1


def fitting_unroll(extent: Expr, width: int, most: int) -> int:
    """How many vectors to take at a time: `most`, or one less where two turns of that leave none over.

    What is left over is code of its own, here as much as a turn, and goes through one accumulator vector by vector.
    """
    fewer = most - 1
    return fewer if fewer > 1 and isinstance(extent, Const) and int(extent.value) // width == 2 * fewer else most


def vector_problem(f: tile.For, extent: Expr, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> str:
    """Why a loop of this extent cannot run by the vectors that it is bound to; empty when it can."""
    given = dict(f.bind.args)
    width = given.get("width", 1)
    fits = fitting_width(width, extent)
    if width < NARROWEST or width & (width - 1):
        return f"vectors have {NARROWEST} lanes or twice as many, and so on, not {width}"
    if fits == 1:
        return f"loop {f.var} of {_number(extent)} iterations is too short for vectors, leave it serial"
    if fits < width:
        return f"loop {f.var} has {_number(extent)} iterations, at most width={fits} fits"
    problem = not_vectorizable(f.body, Var(f.var), tensors, ranges)
    if problem:
        return f"loop {f.var} cannot run in lanes: {problem}; leave it serial"
    return ""


def _number(extent: Expr) -> str:
    return str(extent.value) if isinstance(extent, Const) else "so many"
