"""The unrolled loops that repeat a tensor instruction over the tiles of a matmul, one per axis."""

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
    """The lengths of the tiles along m, n and k, the number of repetitions, and the index of the current one."""

    long: dict[str, int]
    counts: dict[str, int]
    at: dict[str, Expr]

    def around(self, body: Body) -> Body:
        """Wrap all loops around a body, k outermost, so that consecutive matmuls have different accumulators."""
        for axis in "nmk":
            var = self.at[axis]
            body = [k.unrolled(var, self.counts[axis], *body)] if isinstance(var, Var) else body
        return body


def instruction_loops(state: Emission, s: tile.Mma, row: Instruction, inner: Scope) -> InstructionLoops:
    """The loops over the share of one group of warps; their variables get ranges in `inner`."""
    long = tile.lengths(s)
    counts = {"m": long["m"] // s.grid[0] // row.m, "n": long["n"] // s.grid[1] // row.n, "k": long["k"] // row.k}
    at: dict[str, Expr] = {}
    for axis, count in counts.items():
        at[axis] = const(0)
        if count > 1:
            name = state.fresh(axis)
            at[axis], inner.ranges[name] = Var(name), (0, count - 1)
    return InstructionLoops(long, counts, at)
