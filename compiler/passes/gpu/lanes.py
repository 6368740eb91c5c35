"""Loops over lanes: iterations are assigned to threads round robin, or as a fragment's registers lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.analysis import access, nests
from compiler.analysis.argmax import extreme, sought
from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import COMBINE, Const, Expr, Load, Var, const, identity, op, static, substitute
from compiler.ir.index import simplify
from compiler.ir.layout import ThreadMap
from compiler.ir.multiples import divides
from compiler.ir.statement import If, Stmt, Store
from compiler.ir.value_ranges import range_below
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import (
    array_of,
    is_global,
    is_in_cluster_memory,
    lowered,
    place_of,
    split_cluster_offset,
    thread_of,
    yields_zero,
)
from compiler.passes.gpu.scope import WARP, Guarded, Lanes, Scope
from compiler.passes.gpu.sequences import sequence
from compiler.passes.gpu.vectors import Neighbours, find_wide_accesses, uniform

Body = list[k.Stmt]

WIDEST = 16  # bytes per instruction


def thread_map_of(state: Emission, f: tile.For, scope: Scope) -> ThreadMap:
    """The assignment of a loop's iterations to threads. Raises ValueError if it assumes another number of threads."""
    args = dict(f.bind.args)
    expected = {"warp": WARP, "column": scope.role.threads // WARP}.get(scope.level, scope.role.threads)
    threads = args.get("threads", expected)
    if threads != expected:
        raise state.refuse(f"{f.var} is spread over {threads} threads, of which a {scope.level} has others")
    vector = args.get("vector", 1)
    if not divides(lowered(state, f.extent, scope), vector):
        raise state.refuse(f"{f.var} has no multiple of {vector} iterations: run `thread_maps`")
    return ThreadMap(f.extent, threads, vector)


def over_lanes(state: Emission, f: tile.For, scope: Scope) -> Body:
    """Each thread executes its share of the iterations; reductions are combined over all threads."""
    if f.extent is const(0):
        return []
    thread_map = thread_map_of(state, f, scope)
    outer = accumulated(f, scope)
    inner = scope.inner(level="thread")
    before = declare_parts(state, outer, inner)
    body = _emit_rounds(state, f, thread_map, inner, scope)
    for known, how_spread, own in scope.extremes:
        no_index = sought(known, f.var, f.body) if how_spread == thread_map else None
        if no_index is not None:
            # Only threads that saw the extreme search for its index; the others read nothing again.
            part_of = next(inner.values[name] for name in outer)
            assert isinstance(part_of, Var)
            has_extreme = op("eq", own, scope.values[known.total])
            has_extreme = op("or", has_extreme, op("isnan", own)) if own.dtype.is_float else has_extreme
            body = [k.If(has_extreme, tuple(body), (k.Assign(part_of.name, no_index),))]
    found = extreme(f.var, f.body)
    if found is not None and isinstance(own_part := inner.values[found.total], Var):
        scope.extremes = (*scope.extremes, (found, thread_map, own_part))
    after: Body = []
    for name, how in outer.items():
        total, part_var = scope.values[name], inner.values[name]
        assert isinstance(total, Var)
        if scope.level == "column":
            scratch = state.scratch_for(total.dtype, scope.role.threads, scope.role.threads)
            combined = k.Together(how, part_var, thread_map.threads, scratch, WARP)
        else:
            combined = k.Together(how, part_var, thread_map.threads, state.scratch_for(total.dtype, thread_map.threads))
        after.append(k.Assign(total.name, op(COMBINE[how], total, combined)))
    return [*before, *body, *after]


def declare_parts(state: Emission, outer: Mapping[str, str], inner: Scope) -> Body:
    """Declare a thread's partial results for the scalars that `outer` reduces."""
    before: Body = []
    for name, how in outer.items():
        part = Var(state.fresh(f"{name}_part"), inner.values[name].dtype)
        before.append(k.Declare(part.name, identity(how, part.dtype)))
        inner.values[name] = part
    return before


def accumulated(f: tile.For, scope: Scope) -> dict[str, str]:
    """The outer scalars that `f` accumulates into, with their operations."""
    return {name: how for name, how in nests.accumulated((f,)).items() if name in scope.values}


def _emit_rounds(state: Emission, f: tile.For, thread_map: ThreadMap, inner: Scope, scope: Scope) -> Body:
    """A thread's share in rounds of `vector` adjacent iterations, a few rounds unrolled at a time.

    Wide loads of the unrolled rounds are issued before the first use, so that many are in flight, as long as they fit
    the words that the loop allows a thread to hold `ahead`.
    """
    count = simplify(lowered(state, f.extent, scope) // thread_map.vector, scope.ranges, index=True)
    high = range_below(count, scope.ranges)[1]
    total_rounds = -(-(high + 1) // thread_map.threads) if high is not None else None
    args = dict(f.bind.args)
    rounds = args.get("rounds") or total_rounds
    if rounds is None:
        raise state.refuse(f"{f.var} does not say how many rounds are written out")
    whole = "rounds" not in args
    gathered = thread_map.vector == 1 and rounds > 1
    thread = thread_of(scope)
    stem = f.var
    number = Var(state.fresh(stem if thread_map.vector == 1 else f"{stem}_vector"))
    inner.ranges[number.name] = (0, high)
    turn = Var(state.fresh("turn"))
    inner.ranges[turn.name] = (0, rounds - 1)
    share = _round_body(state, f, thread_map, inner, number, turn if rounds > 1 else const(0), rounds)
    if not whole and not share.loads and not gathered:
        return [k.For(number.name, thread, count, thread_map.threads, tuple(share.rest))]
    base: Expr = const(0) if whole else Var(state.fresh(f"{stem}_base"))
    place = base + turn * thread_map.threads + thread if rounds > 1 else base + thread
    step = rounds * thread_map.threads
    exact = isinstance(count, Const) and int(count.value) % step == 0
    # In all unrolled rounds but the last every thread has work.
    full_rounds = int(count.value) // thread_map.threads if whole and rounds > 1 and isinstance(count, Const) else 0
    has_work = op("lt", number, count)
    has_work = op("or", op("lt", turn, const(full_rounds)), has_work) if full_rounds else has_work

    def phase(body: Body) -> Body:
        guarded = body if exact else [k.If(has_work, tuple(body))]
        made = (k.Declare(number.name, place), *guarded)
        return [k.unrolled(turn, rounds, *made)] if rounds > 1 else list(made)

    loads_first = rounds > 1 and share.loads and share.words * rounds <= args.get("ahead", 0)
    phases = [*phase(share.loads), *phase(share.rest)] if loads_first else phase([*share.loads, *share.rest])
    body = [*share.arrays, *(phases if share.rest else phase(share.loads))]
    return body if not isinstance(base, Var) else [k.For(base.name, const(0), count, step, tuple(body), "rolled")]


@dataclass(frozen=True)
class ThreadBody:
    """A thread's part of a round: arrays that outlive it, wide loads into them, of `words` of 4 bytes, and the rest."""

    arrays: Body
    loads: Body
    rest: Body
    words: int = 0


def _round_body(
    state: Emission, f: tile.For, thread_map: ThreadMap, inner: Scope, number: Var, turn: Expr, rounds: int
) -> ThreadBody:
    slot = turn * thread_map.vector
    if thread_map.vector == 1:
        inner.values[f.var] = number
        inner.lanes = Lanes(f.var, thread_map, slot)
        return ThreadBody([], [], sequence(state, f.body, inner))
    lane = Var(state.fresh("n"))
    inner.ranges[lane.name] = (0, thread_map.vector - 1)
    inner.values[f.var] = number * thread_map.vector + lane
    inner.lanes = Lanes(f.var, thread_map, slot + lane)
    return thread_body(state, f.body, inner, lane, thread_map.vector, slot, rounds)


def over_vector(state: Emission, f: tile.For, scope: Scope, vector: int) -> Body:
    """A loop of one thread over adjacent elements, as one vector."""
    if f.extent is const(0):
        return []
    lane = Var(state.fresh(f.var))
    inner = scope.inner()
    inner.values[f.var], inner.ranges[lane.name] = lane, (0, vector - 1)
    return emit_wide(state, f.body, inner, lane, vector)


def emit_wide(state: Emission, body: tuple[Stmt, ...], scope: Scope, lane: Var, vector: int) -> Body:
    """A body for adjacent elements, with the guards that they share hoisted around it."""
    match body:
        case (If(cond, inner),):
            common_guard = uniform(lowered(state, cond, scope), lane, vector, scope.multiples)
            if isinstance(common_guard, Const):
                return emit_wide(state, inner, scope, lane, vector) if common_guard.value else []
            if common_guard is not None:
                return [k.If(common_guard, tuple(emit_wide(state, inner, scope, lane, vector)))]
            return [k.unrolled(lane, vector, *sequence(state, body, scope))]
    return vector_loop(state, body, scope, lane, vector)


def vector_loop(state: Emission, body: tuple[Stmt, ...], inner: Scope, lane: Var, vector: int) -> Body:
    """A body for `lane` = 0 .. vector - 1, with accesses to adjacent elements as wide loads and stores."""
    share = thread_body(state, body, inner, lane, vector, const(0), 1)
    return [*share.arrays, *share.loads, *share.rest]


def thread_body(
    state: Emission, body: tuple[Stmt, ...], inner: Scope, lane: Var, vector: int, slot: Expr, rounds: int
) -> ThreadBody:
    """`vector_loop` in one of several `rounds`: arrays have room for all, and this round's part begins at `slot`.

    A guard that the elements share is around the loads and around the rest.
    """
    match body:
        case (If(cond, guarded),):
            guard = uniform(lowered(state, cond, inner), lane, vector, inner.multiples)
            if guard is not None:
                share = thread_body(state, guarded, inner, lane, vector, slot, rounds)
                parts: list[Body] = [[k.If(guard, tuple(some))] if some else [] for some in (share.loads, share.rest)]
                return replace(share, loads=parts[0], rest=parts[1])
    inner.values["neighbour"] = lane
    found = adjacent_accesses(state, body, inner, lane, vector)
    row = _wide_row_copy(state, body, found, inner, lane, vector)
    if row is not None:
        return row
    arrays: Body = []
    loads: Body = []
    before: Body = []
    after: Body = []
    inner.ready, inner.gathered, inner.zeros = {}, {}, {}
    for (buffer, flat), start in found.loads.items():
        array, dtype = state.fresh(f"{buffer}_near"), inner.buffers[buffer].dtype
        arrays.append(k.Array(array, dtype, vector * rounds, "local", 16))
        guard = found.guards.get((buffer, flat))
        loads += _wide_load(state, array, slot, buffer, start, vector * dtype.bytes, vector, inner, guard)
        if guard is not None and yields_zero(state, buffer, inner):
            inner.zeros[array] = Guarded(guard, lane, vector)
        inner.ready[array_of(state, buffer), flat] = (array, slot + lane)
    for (buffer, flat), start in found.stores.items():
        array, dtype = state.fresh(f"{buffer}_near"), inner.buffers[buffer].dtype
        before.append(k.Array(array, dtype, vector, "local", 16))
        to, source = k.Address(array_of(state, buffer), start), k.Address(array, const(0))
        after += _wide_store(state, to, source, buffer, vector * dtype.bytes, vector)
        inner.gathered[buffer] = (array, flat)
    made = sequence(state, body, inner)
    rest = [*before, k.unrolled(lane, vector, *made), *after]
    words = sum(-(-vector * inner.buffers[b].dtype.bytes // 4) for b, _ in found.loads)
    return ThreadBody(arrays, loads, rest, words)


def adjacent_accesses(state: Emission, body: tuple[Stmt, ...], scope: Scope, lane: Var, vector: int) -> Neighbours:
    """The accesses of a body to adjacent elements of memory."""
    # Sizes known to be multiples of the vector make addresses multiples, too.
    return find_wide_accesses(
        body,
        scope,
        lane,
        vector,
        lambda b, i: place_of(state, b, i, scope)[1],
        lambda cond: lowered(state, cond, scope),
    )


def _wide_row_copy(
    state: Emission, body: tuple[Stmt, ...], found: Neighbours, inner: Scope, lane: Var, vector: int
) -> ThreadBody | None:
    """A copy into the thread's own part of a tile as a wide load; None for other bodies."""
    match body:
        case (Store(to, index, Load(buffer, place, dtype), "set"),) if to in inner.registers:
            array, at = place_of(state, to, index, inner)
            flat = place_of(state, buffer, place, inner)[1]
            is_adjacent = access.stride(simplify(at, inner.ranges, index=True), lane) == 1
            if is_adjacent and inner.buffers[to].dtype is dtype and (buffer, flat) in found.loads:
                first = substitute(at, {lane: const(0)})
                start = found.loads[buffer, flat]
                return ThreadBody(
                    [], _wide_load(state, array, first, buffer, start, vector * dtype.bytes, vector, inner), []
                )
    return None


def _wide_load(
    state: Emission, array: str, slot: Expr, buffer: str, start: Expr, size: int, vector: int, scope: Scope,
    guard: Expr | None = None,
) -> Body:  # fmt: skip
    """Load adjacent elements, `size` bytes, into a thread's array where the guard holds.

    After a branch, elements that are not loaded would be undefined: NVCC 13.0 assumes the values of the previous load,
    so that each load waits for the one before. Hence the guarded load that yields zeros.
    """
    to, source = k.Address(array, slot), k.Address(array_of(state, buffer), start)
    if is_in_cluster_memory(state, buffer, scope):
        place = (to, *split_cluster_offset(state, source, scope))
        if guard is not None:
            return [k.Call("mlc_cluster_get_where", (vector,), (*place, guard), (array,))]
        loads: Body = [k.Call("mlc_cluster_get", (vector,), place, (array,))]
    elif guard is not None and yields_zero(state, buffer, scope):
        return [k.Call("mlc_load_where", (vector,), (to, source, guard), (array,))]
    elif buffer in state.facts.kernel.once:
        pieces = _split_move(to, source, size, vector)
        loads = [k.Call("mlc_load_once", (n,), (to_n, from_n), (array,)) for n, to_n, from_n in pieces]
    else:
        loads = [k.Call("mlc_load", (vector,), (to, source), (array,))]
    return loads if guard is None else [k.If(guard, tuple(loads))]


def _wide_store(state: Emission, to: k.Address, source: k.Address, buffer: str, size: int, vector: int) -> Body:
    """Store adjacent elements, `size` bytes, from a thread's array."""
    if buffer in state.facts.kernel.past:
        pieces = _split_move(to, source, size, vector)
        return [k.Call("mlc_store_once", (n,), (to_n, from_n), (to.buffer,)) for n, to_n, from_n in pieces]
    how = "mlc_store_global" if is_global(state, buffer) else "mlc_store"
    return [k.Call(how, (vector,), (to, source), (to.buffer,))]


def _split_move(to: k.Address, source: k.Address, size: int, vector: int) -> list[tuple[int, k.Address, k.Address]]:
    """Split a move into moves of at most one instruction's width: bytes, target and source of each."""
    piece_bytes = min(size, WIDEST)
    step = vector * piece_bytes // size
    return [
        (piece_bytes, to.replace(index=to.index + n), source.replace(index=source.index + n))
        for n in range(0, vector, step)
    ]


def register_slice(s: tile.Alloc, scope: Scope) -> Body:
    """A thread's share of a tile that loops over lanes distribute."""
    tensor, thread_map = s.tensor, s.layout
    if thread_map is None:
        return []
    assert isinstance(thread_map, ThreadMap)
    rounds = -(-static(thread_map.extent) // (thread_map.threads * thread_map.vector))
    scope.registers |= {tensor.name: tensor.name}
    scope.thread_maps = {**scope.thread_maps, tensor.name: thread_map}
    return [k.Array(tensor.name, tensor.dtype, rounds * thread_map.vector, "local", 16)]
