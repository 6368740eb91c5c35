"""Conditional updates by vote: lanes first find the updates whose condition holds, then apply them in order.

Each lane of a warp tests one update and puts its index into the warp's ring in shared memory. Once the ring holds
`ahead` of them, all lanes load what these updates add, then add it in order. While consecutive updates change the same
elements, these stay in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis import access
from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import boolean, i32, i64
from compiler.ir.expr import Const, Expr, Load, Var, both, cast, const, names, op, select, substitute
from compiler.ir.index import range_below
from compiler.ir.multiples import is_constant_multiple, power
from compiler.ir.statement import If, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.passes.gpu import lanes
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import array_of, is_global, lowered, place_of
from compiler.passes.gpu.scope import THREAD, WARP, Lanes, Scope
from compiler.passes.gpu.sequences import sequence

Body = list[k.Stmt]
ONE, ZERO = const(1, i32), const(0, i32)
BARRIER = k.Barrier("warp")


@dataclass(frozen=True)
class _Ring:
    """Indices of updates found; those from `made` to `found` are still to be applied. `room` is a power of 2."""

    array: str
    room: int
    found: Var
    made: Var

    def at(self, number: Expr) -> Expr:
        start = THREAD // WARP * self.room
        return start + cast(op("and", number, const(self.room - 1, i32)), i64)


@dataclass(frozen=True)
class _Update:
    """A store with its condition; `across` is the loop over lanes around it, None for a single element."""

    store: Store
    cond: Expr
    across: tile.For | None


def over_votes(state: Emission, f: tile.For, scope: Scope) -> Body:
    """A loop over updates that are applied where a condition holds, which is the same for all lanes."""
    args = dict(f.bind.args)
    tests, ahead = args.get("tests", 1), args.get("ahead", 1)
    update = _match_update(f)
    extent = lowered(state, f.extent, scope)
    high = range_below(extent, scope.ranges)[1]
    if scope.level != "warp" or update is None or high is None or high >= 1 << 30:
        raise state.refuse(f"{f.var} is no loop of a warp over updates under one condition")
    room = power(WARP * tests + ahead - 1)
    ring = _Ring(state.fresh(f"{f.var}_ring"), room, Var(state.fresh("found"), i32), Var(state.fresh("made"), i32))
    state.arrays.append(k.Array(ring.array, i32, state.facts.threads // WARP * room, "shared", 16))
    base = Var(state.fresh(f"{f.var}_base"))
    inner = scope.inner()
    inner.ranges[base.name] = (0, high)
    tested = _emit_tests(state, f, update, ring, base, extent, tests, inner)
    share = _lane_share(state, f, update, scope)
    made = _apply_updates(state, f, share, ring, ahead, op("ge", base + WARP * tests, extent))
    turns = k.For(base.name, const(0), extent, WARP * tests, (*tested, BARRIER, made, BARRIER), "rolled")
    dtype = share.scope.buffers[update.store.buffer].dtype
    return [
        k.Declare(ring.found.name, ZERO),
        k.Declare(ring.made.name, ZERO),
        k.Declare(share.kept.name, const(-1)),
        k.Array(share.elements, dtype, share.vector, "local", 16),
        turns,
        *_guarded(share, _write_back(state, share)),
    ]


def _match_update(f: tile.For) -> _Update | None:
    match f.body:
        case (If(cond, (tile.For(bind=tile.Bind(level="lanes"), body=inner) as across,)),):
            return _match_guarded_store(cond, inner, across)
        case (If(cond, inner),):
            return _match_guarded_store(cond, inner, None)
    return None


def _match_guarded_store(cond: Expr, inner: tuple[Stmt, ...], across: tile.For | None) -> _Update | None:
    match inner:
        case (Store() as store,):
            return _Update(store, cond, across)
        case (If(inner_cond, (Store() as store,)),) if across is None or across.var not in names(inner_cond):
            return _Update(store, both(cond, inner_cond), across)
    return None


def _emit_tests(
    state: Emission, f: tile.For, update: _Update, ring: _Ring, base: Var, extent: Expr, tests: int, scope: Scope
) -> Body:
    """Each lane tests `tests` updates, one after the other; those found are appended to the ring in order."""
    turn, number = Var(state.fresh("turn")), Var(state.fresh(f.var))
    lane = scope.values["lane"]
    scope.ranges[turn.name] = (0, tests - 1)
    place = base + turn * WARP + lane
    scope.values[f.var], scope.ranges[number.name] = number, scope.ranges[base.name]
    holds = lowered(state, update.cond, scope)
    there = [op("lt", number, extent)] if not is_constant_multiple(extent, WARP * tests) else []
    mine = select(there[0], holds, Const(False, boolean)) if there else holds
    bit = op("shl", ONE, cast(lane, i32))
    hits, hit = state.fresh("hits"), Var(state.fresh("hit"), i32)
    vote = k.Store(hits, turn, select(mine, bit, ZERO))
    before = k.Ones(op("and", hit, op("not", op("shl", const(-1, i32), cast(lane, i32)))))
    put = k.Store(ring.array, ring.at(ring.found + before), cast(number, i32))
    found = (
        k.Declare(number.name, place),
        k.Declare(hit.name, k.Together("or", Load(hits, (turn,), i32), WARP)),
        k.If(op("ne", op("and", hit, bit), ZERO), (put,)),
        k.Assign(ring.found.name, ring.found + k.Ones(hit)),
    )
    return [
        k.Array(hits, i32, tests, "local", 16),
        k.unrolled(turn, tests, k.Declare(number.name, place), vote),
        k.unrolled(turn, tests, *found),
    ]


@dataclass(frozen=True)
class _Share:
    """A lane's part of an update: `vector` elements, `step` apart, from `place` on, with the variable `neighbour`.

    Lanes without elements fail the `guard`. The array `elements` holds those at `kept`, if that is not negative; `wide`
    accesses move all of them at once.
    """

    update: _Update
    scope: Scope
    vector: int
    neighbour: Var
    guard: Expr | None
    place: Expr
    step: int
    wide: bool
    elements: str
    kept: Var


def _lane_share(state: Emission, f: tile.For, update: _Update, scope: Scope) -> _Share:
    """The part of a lane. Raises ValueError if its elements are scattered."""
    store, across, lane = update.store, update.across, scope.values["lane"]
    inner = scope.inner(level="thread")
    which, neighbour = Var(state.fresh(f.var)), Var(state.fresh("n"))
    inner.values[f.var] = which
    inner.ranges[which.name] = (0, range_below(lowered(state, f.extent, scope), scope.ranges)[1])
    vector: int = 1
    count: Expr = const(1)
    guard: Expr | None = op("eq", lane, const(0))
    if across is not None:
        thread_map = lanes.thread_map_of(state, across, scope)
        vector = thread_map.vector
        count = lowered(state, across.extent, scope) // vector
        guard = None if count is const(WARP) else op("lt", lane, count)
        inner.values[across.var] = lane * vector + neighbour if vector > 1 else lane
        inner.ranges[neighbour.name] = (0, vector - 1)
        inner.lanes = Lanes(across.var, thread_map, neighbour)
    flat = place_of(state, store.buffer, store.index, inner)[1]
    step = access.stride(flat, neighbour)
    most = range_below(count, scope.ranges)[1] if across is not None else 0
    if step is None or most is None or most >= WARP or not is_global(state, store.buffer):
        raise state.refuse(f"lanes have no neighbours each of what {f.var} changes")
    if across is not None and any({f.var, across.var} <= names(i) for i in store.index):
        raise state.refuse(f"lanes change other elements in each iteration of {f.var}")
    probe = (store.replace(value=const(0, store.value.dtype), op="set"),)
    wide = vector > 1 and bool(lanes.adjacent_accesses(state, probe, inner, neighbour, vector).stores)
    kept = Var(state.fresh(f"{store.buffer}_at"))
    return _Share(
        update, inner, vector, neighbour, guard, substitute(flat, {neighbour: const(0)}), step, wide,
        state.fresh(f"{store.buffer}_kept"), kept,
    )  # fmt: skip


def _guarded(share: _Share, s: k.Stmt) -> Body:
    return [s] if share.guard is None else [k.If(share.guard, (s,))]


def _apply_updates(state: Emission, f: tile.For, share: _Share, ring: _Ring, ahead: int, last: Expr) -> k.Stmt:
    """Apply the updates found, `ahead` at a time; fewer only if they are the last."""
    first, turn = Var(state.fresh("first")), Var(state.fresh("turn"))
    number = cast(first + turn, i32)
    scope = share.scope.inner()
    scope.ranges[turn.name] = (0, ahead - 1)
    update_number = scope.values[f.var]
    assert isinstance(update_number, Var)
    # If there are fewer than `ahead`, the last is loaded again.
    there = op("min", number, ring.found - ONE)
    named = k.Declare(update_number.name, cast(Load(ring.array, (ring.at(there),), i32), i64))
    values, places = state.fresh("values"), state.fresh("places")
    # Checks of indices keep their order, so that a load behind one waits for it: all loads are asked for before.
    arrays, indices, place = _load_indices(state, share.place, update_number, turn, ahead)
    address = k.Address(array_of(state, share.update.store.buffer), Load(places, (turn,), i64))
    load = [named, *indices, *_load_addends(state, share, values, turn, scope)]
    check = [
        *([named] if update_number.name in names(place) else []),
        k.Store(places, turn, place),
        *([] if share.update.store.op == "set" else [k.Call("mlc_prefetch", (), (address,))]),
    ]
    here = Var(state.fresh("here"))
    change = [k.Declare(here.name, Load(places, (turn,), i64)), *_change_elements(state, share, here, values, turn)]
    left = select(last, ring.found, ring.found - const(ahead - 1, i32))
    changes = k.If(op("lt", number, ring.found), tuple(change))
    body = (
        k.Array(places, i64, ahead, "local", 16),
        k.Array(values, share.update.store.value.dtype, ahead * share.vector, "local", 16),
        *arrays,
        *_guarded(share, k.unrolled(turn, ahead, *load)),
        *_guarded(share, k.unrolled(turn, ahead, *check)),
        *_guarded(share, k.unrolled(turn, ahead, changes)),
        k.Assign(ring.made.name, cast(first + ahead, i32)),
    )
    return k.For(first.name, cast(ring.made, i64), cast(left, i64), ahead, body, "rolled")


def _load_indices(state: Emission, place: Expr, number: Var, turn: Var, ahead: int) -> tuple[Body, Body, Expr]:
    """Load what the place of an update depends on into arrays; returns these, the stores, and the place in their terms.

    The loads are those whose own place is computed from the number of the update.
    """
    arrays: Body = []
    stores: Body = []
    table: dict[Expr, Expr] = {}
    for n in dict.fromkeys(n for n in place.walk() if isinstance(n, Load) and number.name in names(n)):
        if not any(isinstance(x, Load) for i in n.index for x in i.walk()):
            array = state.fresh(f"{n.buffer}_asked")
            arrays.append(k.Array(array, n.dtype, ahead, "local", 16))
            stores.append(k.Store(array, turn, n))
            table[n] = Load(array, (turn,), n.dtype)
    return arrays, stores, substitute(place, table)


def _load_addends(state: Emission, share: _Share, values: str, turn: Var, scope: Scope) -> Body:
    """Load what an update adds to a lane's elements into the array `values`."""
    across, value = share.update.across, share.update.store.value
    if across is None:
        return [k.Store(values, turn, lowered(state, value, scope))]
    inner = scope.inner()
    slot = turn * share.vector
    assert scope.lanes is not None
    thread_map = scope.lanes.thread_map
    inner.registers = {**scope.registers, values: values}
    inner.thread_maps = {**scope.thread_maps, values: thread_map}
    inner.buffers[values] = Tensor(values, value.dtype, (across.extent,), (const(1),))
    body: tuple[Stmt, ...] = (Store(values, (Var(across.var),), value),)
    if share.vector == 1:
        inner.lanes = Lanes(across.var, thread_map, slot)
        return sequence(state, body, inner)
    inner.lanes = Lanes(across.var, thread_map, slot + share.neighbour)
    return lanes.vector_loop(state, body, inner, share.neighbour, share.vector)


def _change_elements(state: Emission, share: _Share, here: Var, values: str, turn: Var) -> Body:
    """Update a lane's elements in registers, after swapping them if others are held."""
    store = share.update.store
    slot = turn * share.vector + share.neighbour
    value = Load(values, (slot,), store.value.dtype)
    change = k.Store(share.elements, share.neighbour, value, store.op)
    fetched = [] if store.op == "set" else [_fetch_elements(state, share, here)]
    moved = (_write_back(state, share), k.Assign(share.kept.name, here), *fetched)
    return [k.If(op("ne", here, share.kept), moved), _for_each_element(share, change)]


def _for_each_element(share: _Share, s: k.Stmt) -> k.Stmt:
    return k.unrolled(share.neighbour, share.vector, s)


def _fetch_elements(state: Emission, share: _Share, here: Var) -> k.Stmt:
    """Load a lane's elements from memory."""
    buffer, dtype = share.update.store.buffer, share.scope.buffers[share.update.store.buffer].dtype
    if share.wide:
        to, source = k.Address(share.elements, const(0)), k.Address(array_of(state, buffer), here)
        return k.Call("mlc_load", (share.vector,), (to, source), (share.elements,))
    there = Load(array_of(state, buffer), (here + share.neighbour * share.step,), dtype)
    return _for_each_element(share, k.Store(share.elements, share.neighbour, there))


def _write_back(state: Emission, share: _Share) -> k.Stmt:
    """Store a lane's elements, if it holds any."""
    buffer, dtype = share.update.store.buffer, share.scope.buffers[share.update.store.buffer].dtype
    if share.wide:
        to, source = k.Address(array_of(state, buffer), share.kept), k.Address(share.elements, const(0))
        stored: Body = [k.Call("mlc_store_global", (share.vector,), (to, source), (to.buffer,))]
    else:
        value = Load(share.elements, (share.neighbour,), dtype)
        stored = [
            _for_each_element(share, k.Store(array_of(state, buffer), share.kept + share.neighbour * share.step, value))
        ]
    return k.If(op("ge", share.kept, const(0)), tuple(stored))
