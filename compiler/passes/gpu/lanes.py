"""Loops over lanes: their iterations go to threads round robin, or as the registers of a fragment lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import COMBINE, Const, Expr, Var, const, identity, op, static, substitute
from compiler.ir.index import simplify
from compiler.ir.statement import Accum, Init, Stmt
from compiler.passes.gpu.scope import WARP, Lanes, Scope, Spread, range_of
from compiler.passes.gpu.vectors import Neighbours, divides, neighbours

if TYPE_CHECKING:
    from compiler.passes.gpu.threads import Lowering

Body = list[k.Stmt]

ROUNDS_UNROLLED = 16  # of a loop over lanes that keeps nothing in registers


def spread_of(low: Lowering, f: tile.For, scope: Scope) -> Spread:
    """How the iterations of a loop go to threads; raises ValueError where those are not the ones that are there."""
    given = dict(f.bind.args)
    here = WARP if scope.level == "warp" else low.threads
    threads = given.get("threads", here)
    if threads != here:
        raise ValueError(
            f"kernel {low.source.name}: {f.var} is spread over {threads} threads, of which a {scope.level} has others"
        )
    vector = given.get("vector", 1)
    return Spread(f.extent, threads, vector if divides(low.value(f.extent, scope), vector) else 1)


def over_lanes(low: Lowering, f: tile.For, scope: Scope) -> Body:
    """Each thread takes its share of the iterations; what they accumulate, all threads combine."""
    if f.kind == "scan":
        raise ValueError(f"kernel {low.source.name}: the scan {f.var} cannot be spread over threads")
    if f.extent is const(0):
        return []
    flat = _flattened(f)
    if flat is not None:
        return over_lanes(low, flat, scope)
    spread = spread_of(low, f, scope)
    outer = accumulated(f, scope)
    inner = scope.inner(level="thread")
    before: Body = []
    for name, how in outer.items():
        total = scope.values[name]
        part = low.fresh(f"{name}_part")
        before.append(k.Declare(part, identity(how, total.dtype)))
        inner.values[name] = Var(part, total.dtype)
    body = _rounds(low, f, spread, inner, scope)
    after: Body = []
    for name, how in outer.items():
        total, part_var = scope.values[name], inner.values[name]
        assert isinstance(total, Var)
        if spread.threads > WARP:
            low.hazards.clear()
        together = k.Together(how, part_var, spread.threads, low.scratch_for(total.dtype, spread.threads))
        after.append(k.Assign(total.name, op(COMBINE[how], total, together)))
    return [*before, *body, *after]


def accumulated(f: tile.For, scope: Scope) -> dict[str, str]:
    """Scalars from outside that `f` accumulates into, with their reductions."""
    inside = {n.name for n in f.walk() if isinstance(n, Init)}
    return {n.name: n.op for n in f.walk() if isinstance(n, Accum) and n.name in scope.values and n.name not in inside}


def _flattened(f: tile.For) -> tile.For | None:
    """A perfect nest of two loops over lanes as one: row by row over all threads."""
    if len(f.body) != 1 or not isinstance(f.body[0], tile.For) or f.body[0].bind.level != "lanes":
        return None
    inner = f.body[0]
    if not isinstance(inner.extent, Const) or f.kind != inner.kind:
        return None
    both = Var(f"{f.var} {inner.var}")
    table = {Var(f.var): both // inner.extent, Var(inner.var): both % inner.extent}
    args = tuple((dict(f.bind.args) | {x: v for x, v in inner.bind.args if x == "vector"}).items())
    if int(inner.extent.value) % dict(args).get("vector", 1):
        args = tuple((x, v) for x, v in args if x != "vector")
    body = substitute(inner.body, table)
    return tile.For(both.name, f.extent * inner.extent, f.kind, tile.Bind("lanes", args), body)


def _rounds(low: Lowering, f: tile.For, spread: Spread, inner: Scope, scope: Scope) -> Body:
    """The loop by which a thread goes through its share, `vector` neighbours at a time."""
    count = simplify(low.value(f.extent, scope) // spread.vector, scope.ranges, index=True)
    kept = tile.buffers((f,)) & set(scope.registers or {})
    high = range_of(count, scope.ranges)[1]
    me = low.thread(scope)
    stem = f.var.replace(" ", "_")
    number = low.fresh(stem if spread.vector == 1 else f"{stem}_vector")
    inner.ranges[number] = (0, high)
    rounds = -(-(high + 1) // spread.threads) if high is not None else None
    if rounds is not None and (kept or rounds <= ROUNDS_UNROLLED):
        turn = Var(low.fresh("turn"))
        inner.ranges[turn.name] = (0, rounds - 1)
        slot: Expr = turn * spread.vector if rounds > 1 else const(0)
        body = _share(low, f, spread, inner, Var(number), slot)
        exact = isinstance(count, Const) and int(count.value) == rounds * spread.threads
        place = turn * spread.threads + me if rounds > 1 else me
        declared = k.Declare(number, place)
        guarded = body if exact else [k.If(op("lt", Var(number), count), tuple(body))]
        if rounds == 1:
            return [declared, *guarded]
        return [k.For(turn.name, const(0), const(rounds), 1, (declared, *guarded), "unroll")]
    if kept:
        raise ValueError(f"kernel {low.source.name}: tiles in registers need known sizes: {sorted(kept)}")
    body = _share(low, f, spread, inner, Var(number), const(0))
    return [k.For(number, me, count, spread.threads, tuple(body))]


def _share(low: Lowering, f: tile.For, spread: Spread, inner: Scope, number: Var, slot: Expr) -> Body:
    """What a thread does in one round."""
    if spread.vector == 1:
        inner.values[f.var] = number
        inner.lanes = Lanes(f.var, spread, slot)
        return low.sequence(f.body, inner)
    lane = Var(low.fresh("n"))
    inner.ranges[lane.name] = (0, spread.vector - 1)
    inner.values[f.var] = number * spread.vector + lane
    inner.lanes = Lanes(f.var, spread, slot + lane)
    return vector_loop(low, f.body, inner, lane, spread.vector)


def vector_loop(low: Lowering, body: tuple[Stmt, ...], inner: Scope, lane: Var, vector: int) -> Body:
    """A body for `lane` = 0 .. vector - 1, with what neighbours load and store moved at once."""
    inner.values["neighbour"] = lane
    # Sizes known to be multiples of the vector make addresses so.
    found = neighbours(body, inner, lane, vector, lambda b, i: low.at(b, i, inner)[1])
    before, after = _transfers(low, found, vector, inner)
    made = low.sequence(body, inner)
    return [*before, k.For(lane.name, const(0), const(vector), 1, tuple(made), "unroll"), *after]


def _transfers(low: Lowering, found: Neighbours, vector: int, inner: Scope) -> tuple[Body, Body]:
    """Loads and stores of whole vectors around the loop over neighbours."""
    before: Body = []
    after: Body = []
    inner.ready, inner.gathered = {}, {}
    for (buffer, flat), start in found.loads.items():
        array, dtype = low.fresh(f"{buffer}_near"), inner.buffers[buffer].dtype
        to, source = k.Address(array, const(0)), k.Address(low.array(buffer), start)
        before.append(k.Array(array, dtype, vector, "local", 16))
        before.append(k.Call("mlc_load", (vector,), (to, source), (array,)))
        inner.ready[low.array(buffer), flat] = (array, inner.values["neighbour"])
    for (buffer, flat), start in found.stores.items():
        array, dtype = low.fresh(f"{buffer}_near"), inner.buffers[buffer].dtype
        before.append(k.Array(array, dtype, vector, "local", 16))
        to, source = k.Address(low.array(buffer), start), k.Address(array, const(0))
        after.append(k.Call("mlc_store", (vector,), (to, source), (low.array(buffer),)))
        inner.gathered[buffer] = (array, flat)
    return before, after


def register_share(low: Lowering, s: tile.Alloc, scope: Scope, after: tuple[Stmt, ...]) -> Body:
    """A thread's share of a tile that the loops over lanes behind it spread."""
    tensor = s.tensor
    user = next((n for x in after for n in x.walk() if _is_user(n, tensor.name)), None)
    if user is None:
        return []
    spread = spread_of(low, user, scope)
    rounds = -(-static(spread.extent) // (spread.threads * spread.vector))
    scope.registers = {**(scope.registers or {}), tensor.name: tensor.name}
    low.spreads[tensor.name] = spread
    return [k.Array(tensor.name, tensor.dtype, rounds * spread.vector, "local", 16)]


def _is_user(n: object, buffer: str) -> bool:
    return isinstance(n, tile.For) and n.bind.level == "lanes" and buffer in tile.buffers((n,))
