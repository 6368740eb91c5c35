"""Pipelines of all threads: copies by cp.async run some iterations ahead of the matmuls, in slots of shared memory."""

from __future__ import annotations

from itertools import takewhile

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const, op, select
from compiler.ir.index import range_below, simplify, value_range
from compiler.ir.statement import Stmt
from compiler.passes.gpu import copies, stages, wgmma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered
from compiler.passes.gpu.scope import Scope
from compiler.passes.gpu.sequences import emit, loop, loop_body, sequence

Body = list[k.Stmt]


def pipeline(state: Emission, f: tile.For, scope: Scope) -> Body:
    """A loop whose asynchronous copies run `depth` - 1 iterations ahead, behind what each iteration begins with.

    Every iteration ends a group of copies, be it empty, so that waiting for all but the latest few means the same in
    each of them.
    """
    depth = dict(f.bind.args).get("depth", 1)
    copied, rest = stages.split(f)
    if depth < 2 or not copied:
        return loop(state, f, scope)
    tiles = frozenset(s.tensor.name for s in f.body if isinstance(s, tile.Alloc) and s.space == "shared")
    used = frozenset(c.target.buffer for c in copied if isinstance(c, tile.Copy))
    if not used <= tiles:
        raise ValueError(
            f"kernel {state.facts.name}: the pipeline {f.var} copies to {sorted(used - tiles)} outside of it"
        )
    for s in f.body:
        if isinstance(s, tile.Alloc) and s.tensor.name in used:
            state.allocate(s, depth)
            scope.buffers[s.tensor.name] = s.tensor
    extent = lowered(state, f.extent, scope)
    return [
        *_prologue(state, f, copied, extent, depth, used, scope),
        *_main(state, f, copied, rest, extent, depth, used, scope),
    ]


def _prologue(
    state: Emission, f: tile.For, copied: tuple[Stmt, ...], extent: Expr, depth: int, used: frozenset[str], scope: Scope
) -> Body:
    stage = Var(state.fresh("stage"))
    inner = scope.inner()
    inner.ranges[stage.name] = (0, depth - 2)
    body = _issue(state, f, copied, stage, stage, extent, used, inner)
    if depth == 2:
        return [k.Declare(stage.name, const(0)), *body]
    return [k.For(stage.name, const(0), const(depth - 1), 1, tuple(body), "unroll")]


def _main(
    state: Emission,
    f: tile.For,
    copied: tuple[Stmt, ...],
    rest: tuple[Stmt, ...],
    extent: Expr,
    depth: int,
    used: frozenset[str],
    scope: Scope,
) -> Body:
    read, write, var = (Var(state.fresh(n)) for n in ("read", "write", f.var))
    inner = scope.inner()
    inner.values[f.var] = var
    inner.ranges[var.name] = range_below(extent, scope.ranges)
    inner.ranges[read.name] = inner.ranges[write.name] = (0, depth - 1)
    begun = wgmma.begun_by(state, f, var)
    start = tuple(takewhile(lambda s: isinstance(s, tile.Sync), rest))
    body = sequence(state, start, inner)
    body += _issue(state, f, copied, var + (depth - 1), write, extent, used, inner)
    at(state, used, read)
    body += loop_body(state, stages.without_tiles(rest[len(start) :], used), inner)
    body += [k.Assign(x.name, following(x, depth)) for x in (read, write)]
    counters: Body = [k.Declare(read.name, const(0)), k.Declare(write.name, const(depth - 1))]
    zeros = wgmma.zeroed_behind(state, begun, extent, scope)
    return [*counters, k.For(var.name, const(0), extent, 1, tuple(body)), *zeros]


def _issue(
    state: Emission,
    f: tile.For,
    copied: tuple[Stmt, ...],
    number: Expr,
    slot: Expr,
    extent: Expr,
    used: frozenset[str],
    scope: Scope,
) -> Body:
    """The copies of iteration `number`, if there is one, as a group."""
    some = simplify(op("lt", number, extent), scope.ranges, index=True)
    if isinstance(some, Const) and not some.value:
        return [k.Call("mlc_cp_async_commit", (), ())]
    inner = scope.inner()
    ahead = Var(state.fresh(f.var))
    inner.values[f.var] = ahead
    inner.ranges[ahead.name] = value_range(number, scope.ranges)[0], range_below(extent, scope.ranges)[1]
    at(state, used, slot)
    body: Body = [k.Declare(ahead.name, number)]
    for s in copied:
        body += copies.pieces(state, s, inner) if isinstance(s, tile.Copy) else emit(state, s, inner)
    if not isinstance(some, Const):
        body = [k.If(some, tuple(body))]
    return [*body, k.Call("mlc_cp_async_commit", (), ())]


def at(state: Emission, used: frozenset[str], slot: Expr) -> None:
    """From here on tiles of a pipeline are those in `slot`."""
    for name in used:
        state.shared[name] = state.shared[name].in_slot(slot)


def following(slot: Var, depth: int) -> Expr:
    """The slot after this one, in a ring."""
    return select(op("lt", slot, const(depth - 1)), slot + 1, const(0))
