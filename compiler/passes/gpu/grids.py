"""The grid of a launch, from loops over blocks: its size, and the indices of a block."""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const
from compiler.ir.value_ranges import extent_range
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered
from compiler.passes.gpu.scope import Scope

Body = list[k.Stmt]

AXES = ("x", "y", "z")
MOST_IN_YZ = 65535  # blocks along the second and third axis of a grid, for every compute capability


def grid(state: Emission, axes: list[tile.For], scope: Scope) -> tuple[tuple[Expr, ...], Body]:
    """The extents of the grid, innermost first, and declarations of a block's indices."""
    extents = [lowered(state, f.extent, scope) for f in axes]
    wide = [e for e in extents[:-1] if not isinstance(e, Const) or int(e.value) > MOST_IN_YZ]
    start: Body = []
    places: list[Expr] = [k.Builtin(f"block.{a}") for a in AXES[: len(axes)]]
    shape = tuple(reversed(extents))
    if wide or len(axes) > len(AXES):
        flat = Var(state.fresh("block"))
        start.append(k.Declare(flat.name, places[0] if places else k.Builtin("block.x")))
        total: Expr = const(1)
        places, shape = [], ()
        for n, e in reversed(list(enumerate(extents))):
            places.append(flat // total % e if n else flat // total)
            total = total * e
        shape = (total,)
    for f, e, place in zip(reversed(axes), reversed(extents), places, strict=True):
        var = state.fresh(f.var)
        scope.values[f.var], scope.ranges[var] = Var(var), extent_range(e)
        start.append(k.Declare(var, place))
    return shape or (const(1),), start
