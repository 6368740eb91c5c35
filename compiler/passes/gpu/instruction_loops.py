"""How often a tensor instruction is repeated for a matmul of tiles: a loop that is written out for each axis."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Expr, Var, const
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.scope import Scope
from compiler.targets.target import Instruction

Body = list[k.Stmt]


@dataclass(frozen=True)
class InstructionLoops:
    """The number of the repetition along m, n and k, of so many; `long` are the lengths of the tiles."""

    long: dict[str, int]
    counts: dict[str, int]
    at: dict[str, Expr]

    def around(self, body: Body) -> Body:
        """All repetitions, those along k outside, so that matmuls into one accumulator do not follow each other."""
        for axis in "nmk":
            var = self.at[axis]
            body = [k.unrolled(var, self.counts[axis], *body)] if isinstance(var, Var) else body
        return body


def instruction_loops(state: Emission, s: tile.Mma, row: Instruction, inner: Scope) -> InstructionLoops:
    """What each of the groups of warps that share a matmul does of it; variables are known in `inner`."""
    long = tile.lengths(s)
    counts = {"m": long["m"] // s.grid[0] // row.m, "n": long["n"] // s.grid[1] // row.n, "k": long["k"] // row.k}
    at: dict[str, Expr] = {}
    for axis, count in counts.items():
        at[axis] = const(0)
        if count > 1:
            name = state.fresh(axis)
            at[axis], inner.ranges[name] = Var(name), (0, count - 1)
    return InstructionLoops(long, counts, at)
