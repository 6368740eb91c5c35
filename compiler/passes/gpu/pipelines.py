"""Pipelines of all threads: copies by cp.async run some iterations ahead of the products, in slots of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const, names, op, select
from compiler.ir.index import range_below, simplify, value_range
from compiler.ir.statement import Let, Stmt
from compiler.passes.gpu import copies
from compiler.passes.gpu.hazards import Uses
from compiler.passes.gpu.scope import Scope

if TYPE_CHECKING:
    from compiler.passes.gpu.threads import Lowering

Body = list[k.Stmt]


def pipeline(low: Lowering, f: tile.For, scope: Scope) -> Body:
    """A loop whose asynchronous copies run `depth` - 1 iterations ahead, with one barrier in each iteration.

    Every iteration ends a group of copies, be it empty, so that waiting for all but the latest few means the same in
    each of them.
    """
    depth = dict(f.bind.args).get("depth", 1)
    copied, rest = split(f, low)
    if depth < 2 or not copied:
        return low.loop(f, scope)
    tiles = frozenset(s.tensor.name for s in f.body if isinstance(s, tile.Alloc) and s.space == "shared")
    used = frozenset(c.target.buffer for c in copied if isinstance(c, tile.Copy))
    if not used <= tiles:
        raise ValueError(
            f"kernel {low.source.name}: the pipeline {f.var} copies to {sorted(used - tiles)} outside of it"
        )
    for s in f.body:
        if isinstance(s, tile.Alloc) and s.tensor.name in used:
            low.allocate(s, depth)
            scope.buffers[s.tensor.name] = s.tensor
    extent = low.value(f.extent, scope)
    out: Body = []
    if low.hazards.between(Uses(frozenset(), used)):
        out.append(low.meet(scope))
        low.hazards.clear()
    out += _prologue(low, f, copied, extent, depth, used, scope)
    out += _main(low, f, copied, rest, extent, depth, used, scope)
    low.hazards.add(Uses(used, frozenset()))
    return out


def split(f: tile.For, low: Lowering) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """What runs ahead, the asynchronous copies and the values that they are computed from; and all statements but them.

    Values are computed on both sides.
    """
    ahead = [s for s in f.body if isinstance(s, tile.Copy) and s.how != "plain" and s.source.buffer not in low.tiles]
    needed = set().union(*(names(s) for s in ahead))
    lets: list[Stmt] = []
    for s in reversed(f.body):
        if isinstance(s, Let) and s.name in needed:
            needed |= names(s.value)
            lets.insert(0, s)
    rest = tuple(s for s in f.body if s not in ahead)
    return (*lets, *ahead) if ahead else (), rest


def waits_for(low: Lowering, s: tile.Copy, after: tuple[Stmt, ...]) -> bool:
    """Whether a pipeline comes next, whose first copies a copy can join, and nothing behind it needs its target."""
    match after:
        case (tile.For(bind=tile.Bind(level="pipeline")) as f, *others):
            runs_ahead = dict(f.bind.args).get("depth", 1) > 1 and bool(split(f, low)[0])
            return runs_ahead and s.target.buffer not in tile.buffers(tuple(others))
    return False


def _prologue(
    low: Lowering, f: tile.For, copied: tuple[Stmt, ...], extent: Expr, depth: int, used: frozenset[str], scope: Scope
) -> Body:
    stage = Var(low.fresh("stage"))
    inner = scope.inner()
    inner.ranges[stage.name] = (0, depth - 2)
    body = _issue(low, f, copied, stage, stage, extent, used, inner)
    if depth == 2:
        return [k.Declare(stage.name, const(0)), *body]
    return [k.For(stage.name, const(0), const(depth - 1), 1, tuple(body), "unroll")]


def _main(
    low: Lowering,
    f: tile.For,
    copied: tuple[Stmt, ...],
    rest: tuple[Stmt, ...],
    extent: Expr,
    depth: int,
    used: frozenset[str],
    scope: Scope,
) -> Body:
    read, write, var = (Var(low.fresh(n)) for n in ("read", "write", f.var))
    inner = scope.inner(ordered=scope.ordered | used)
    inner.values[f.var] = var
    inner.ranges[var.name] = range_below(extent, scope.ranges)
    inner.ranges[read.name] = inner.ranges[write.name] = (0, depth - 1)
    body: Body = [k.Call("mlc_cp_async_wait", (depth - 2,), ()), low.meet(scope)]
    low.hazards.clear()
    body += _issue(low, f, copied, var + (depth - 1), write, extent, used, inner)
    at(low, used, read)
    body += low.loop_body(f, rest_of(rest, used), inner, meets=True)
    body += [k.Assign(x.name, following(x, depth)) for x in (read, write)]
    start: Body = [k.Declare(read.name, const(0)), k.Declare(write.name, const(depth - 1))]
    return [*start, k.For(var.name, const(0), extent, 1, tuple(body))]


def _issue(
    low: Lowering,
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
    ahead = Var(low.fresh(f.var))
    inner.values[f.var] = ahead
    inner.ranges[ahead.name] = value_range(number, scope.ranges)[0], range_below(extent, scope.ranges)[1]
    at(low, used, slot)
    body: Body = [k.Declare(ahead.name, number)]
    for s in copied:
        body += copies.pieces(low, s, inner) if isinstance(s, tile.Copy) else low.stmt(s, inner)
    if not isinstance(some, Const):
        body = [k.If(some, tuple(body))]
    return [*body, k.Call("mlc_cp_async_commit", (), ())]


def at(low: Lowering, used: frozenset[str], slot: Expr) -> None:
    """From here on tiles of a pipeline are those in `slot`."""
    for name in used:
        low.shared[name] = low.shared[name].in_slot(slot)


def following(slot: Var, depth: int) -> Expr:
    """The slot after this one, in a ring."""
    return select(op("lt", slot, const(depth - 1)), slot + 1, const(0))


def next_slot(slot: Var, phase: Var, depth: int) -> Body:
    """The next slot of a ring; each time that the ring begins again, phases change."""
    if depth == 1:
        return [k.Assign(phase.name, op("xor", phase, const(1)))]
    more = op("lt", slot, const(depth - 1))
    turned = k.Assign(phase.name, select(more, phase, op("xor", phase, const(1))))
    return [turned, k.Assign(slot.name, following(slot, depth))]


def rest_of(rest: tuple[Stmt, ...], used: frozenset[str]) -> tuple[Stmt, ...]:
    """Without the allocation of the pipeline's own tiles."""
    return tuple(s for s in rest if not (isinstance(s, tile.Alloc) and s.tensor.name in used))
