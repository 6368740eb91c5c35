"""Pipelines of all threads: cp.async copies run some iterations ahead of the matmuls, in slots of shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const, op, select
from compiler.ir.index import simplify
from compiler.ir.statement import Stmt
from compiler.ir.value_ranges import range_below, value_range
from compiler.passes.gpu import copies, stages, wgmma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered
from compiler.passes.gpu.scope import Scope
from compiler.passes.gpu.sequences import emit, loop, loop_body, sequence

Body = list[k.Stmt]


def pipeline(state: Emission, f: tile.For, scope: Scope) -> Body:
    """A loop whose asynchronous copies run `depth` - 1 iterations ahead, after the leading syncs of each iteration.

    Every iteration commits a group of copies, even an empty one, so that a wait for all but the latest few groups means
    the same in every iteration.
    """
    depth = dict(f.bind.args).get("depth", 1)
    copied, rest = stages.split(f)
    if depth < 2 or not copied:
        return loop(state, f, scope)
    tiles = frozenset(s.tensor.name for s in f.body if isinstance(s, tile.Alloc) and s.space == "shared")
    used = frozenset(c.target.buffer for c in copied if isinstance(c, tile.Copy))
    if not used <= tiles:
        raise state.refuse(f"the pipeline {f.var} copies to {sorted(used - tiles)} outside of it")
    for s in f.body:
        if isinstance(s, tile.Alloc) and s.tensor.name in used:
            state.allocate(s, depth)
            scope.buffers[s.tensor.name] = s.tensor
    return _Pipeline(state, f, copied, rest, lowered(state, f.extent, scope), depth, used).made(scope)


@dataclass(frozen=True)
class _Pipeline:
    """The loop with the statements `copied` ahead, the `rest`, and the tiles `used` by the copies."""

    state: Emission
    f: tile.For
    copied: tuple[Stmt, ...]
    rest: tuple[Stmt, ...]
    extent: Expr
    depth: int
    used: frozenset[str]

    def made(self, scope: Scope) -> Body:
        return [*self.prologue(scope.inner()), *self.main(scope)]

    def prologue(self, inner: Scope) -> Body:
        stage = Var(self.state.fresh("stage"))
        inner.ranges[stage.name] = (0, self.depth - 2)
        body = self.issue(stage, stage, inner)
        return (
            [k.Declare(stage.name, const(0)), *body] if self.depth == 2 else [k.unrolled(stage, self.depth - 1, *body)]
        )

    def main(self, scope: Scope) -> Body:
        state, f, extent, depth = self.state, self.f, self.extent, self.depth
        read, write, var = (Var(state.fresh(n)) for n in ("read", "write", f.var))
        inner = scope.inner()
        inner.values[f.var] = var
        inner.ranges[var.name] = range_below(extent, scope.ranges)
        inner.ranges[read.name] = inner.ranges[write.name] = (0, depth - 1)
        begun = wgmma.initialised_by(state, f, var)
        start = tuple(takewhile(lambda s: isinstance(s, tile.Sync), self.rest))
        body = sequence(state, start, inner)
        body += self.issue(var + (depth - 1), write, inner)
        self.use_slot(read)
        body += loop_body(state, stages.without_tiles(self.rest[len(start) :], self.used), inner)
        body += [k.Assign(x.name, next_slot(x, depth)) for x in (read, write)]
        counters: Body = [k.Declare(read.name, const(0)), k.Declare(write.name, const(depth - 1))]
        zeros = wgmma.zero_after_loop(state, begun, extent, scope)
        return [*counters, k.For(var.name, const(0), extent, 1, tuple(body)), *zeros]

    def issue(self, number: Expr, slot: Expr, scope: Scope) -> Body:
        """The copies of iteration `number`, if it exists, as a group."""
        state = self.state
        some = simplify(op("lt", number, self.extent), scope.ranges, index=True)
        if isinstance(some, Const) and not some.value:
            return [k.Call("mlc_cp_async_commit", (), ())]
        inner = scope.inner()
        ahead = Var(state.fresh(self.f.var))
        inner.values[self.f.var] = ahead
        inner.ranges[ahead.name] = value_range(number, scope.ranges)[0], range_below(self.extent, scope.ranges)[1]
        self.use_slot(slot)
        body: Body = [k.Declare(ahead.name, number)]
        for s in self.copied:
            body += copies.pieces(state, s, inner) if isinstance(s, tile.Copy) else emit(state, s, inner)
        if not isinstance(some, Const):
            body = [k.If(some, tuple(body))]
        return [*body, k.Call("mlc_cp_async_commit", (), ())]

    def use_slot(self, slot: Expr) -> None:
        """Make the pipeline's tiles refer to `slot` from here on."""
        for name in self.used:
            self.state.shared[name] = self.state.shared[name].in_slot(slot)


def next_slot(slot: Var, depth: int) -> Expr:
    """The slot after this one, in a ring."""
    return select(op("lt", slot, const(depth - 1)), slot + 1, const(0))
