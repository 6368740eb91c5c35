"""Conditional updates by vote: lanes first find the updates whose condition holds, then apply them in order.

Each lane of a warp tests one update and puts its index and its place into the warp's ring in shared memory. Once the
ring holds `ahead` of them, all lanes load what these updates add, then add it in order. While consecutive updates
change the same elements, these stay in registers; many of them that all do so, as the gradients of a token that pads or
masks a text, are loaded together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce

from compiler.analysis import access
from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import boolean, i32, i64
from compiler.ir.expr import Const, Expr, Load, Var, both, cast, const, names, op, select, substitute
from compiler.ir.multiples import is_constant_multiple, power
from compiler.ir.statement import If, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import range_below
from compiler.passes.gpu import lanes
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import array_of, is_global, lowered, place_of
from compiler.passes.gpu.scope import THREAD, WARP, Lanes, Scope
from compiler.passes.gpu.sequences import sequence

Body = list[k.Stmt]
ONE, ZERO = const(1, i32), const(0, i32)
BARRIER = k.Barrier("warp")
RUN, RUN_ELEMENTS = 64, 128  # most updates of one place that are loaded together, and most elements of a lane


@dataclass(frozen=True)
class _Ring:
    """Updates found, by their indices and the places that they change.

    Those from `made` to `found` are still to be applied. `room` is a power of 2.
    """

    numbers: str
    places: str
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
    room = power(WARP * tests + max(RUN, ahead) - 1)
    ring = _Ring(
        state.fresh(f"{f.var}_ring"),
        state.fresh(f"{f.var}_places"),
        room,
        Var(state.fresh("found"), i32),
        Var(state.fresh("made"), i32),
    )
    for array, dtype in ((ring.numbers, i32), (ring.places, i64)):
        state.arrays.append(k.Array(array, dtype, state.facts.threads // WARP * room, "shared", 16))
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
    at = ring.at(ring.found + before)
    put = (
        k.Store(ring.numbers, at, cast(number, i32)),
        k.Store(ring.places, at, _place_of_update(state, f, update.store, scope)),
    )
    found = (
        k.Declare(number.name, place),
        k.Declare(hit.name, k.Together("or", Load(hits, (turn,), i32), WARP)),
        k.If(op("ne", op("and", hit, bit), ZERO), put),
        k.Assign(ring.found.name, ring.found + k.Ones(hit)),
    )
    return [
        k.Array(hits, i32, tests, "local", 16),
        k.unrolled(turn, tests, k.Declare(number.name, place), vote),
        k.unrolled(turn, tests, *found),
    ]


@dataclass(frozen=True)
class _Share:
    """A lane's part of an update: `vector` elements, `step` apart, with the variable `neighbour`.

    They begin `offset` behind the place of the update. Lanes without elements fail the `guard`. The array `elements`
    holds those at `kept`, if that is not negative; `wide` accesses move all of them at once.
    """

    update: _Update
    scope: Scope
    vector: int
    neighbour: Var
    guard: Expr | None
    offset: Expr
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
    flat = place_of(state, store.buffer, _index(store, f, of_update=False), inner)[1]
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
    """Apply the updates found: `ahead` at a time, or a longer run of them that all change one place.

    There are fewer than `ahead` only if they are the last; until then, what may begin a run waits for the rest of it.
    """
    first, lane, others = Var(state.fresh("first")), share.scope.values["lane"], Var(state.fresh("others"), i32)
    run = _longest_run(share)
    begin = _place_in(ring, cast(first, i32))
    mine = [_or_last(ring, cast(first + lane + const(start), i32)) for start in range(0, run, WARP)]
    differs = [op("ne", _place_in(ring, number), begin) for number in mine]
    vote = k.Declare(others.name, k.Together("or", select(reduce(partial(op, "or"), differs), ONE, ZERO), WARP))
    is_complete = op("le", cast(first + run, i32), ring.found)
    few = (*_apply_few(state, f, share, ring, first, ahead), k.Assign(ring.made.name, cast(first + ahead, i32)))
    turns = k.If(
        both(is_complete, op("eq", others, ZERO)),
        (*_apply_run(state, f, share, ring, first, run), k.Assign(ring.made.name, cast(first + run, i32))),
        (k.If(op("or", last, op("ne", others, ZERO)), few),),
    )
    body = k.If(op("ge", first, cast(ring.made, i64)), (vote, turns))  # not yet applied by a run
    left = select(last, ring.found, ring.found - const(ahead - 1, i32))
    return k.For(first.name, cast(ring.made, i64), cast(left, i64), ahead, (body,), "rolled")


def _longest_run(share: _Share) -> int:
    """The most updates of one place that are applied together, a multiple of WARP."""
    return max(WARP, min(RUN, RUN_ELEMENTS // share.vector) // WARP * WARP)


def _place_in(ring: _Ring, number: Expr) -> Expr:
    """The place of the update at this position of the ring."""
    return Load(ring.places, (ring.at(number),), i64)


def _or_last(ring: _Ring, number: Expr) -> Expr:
    """The position, or that of the last update found if there is none there."""
    return op("min", number, ring.found - ONE)


def _apply_run(state: Emission, f: tile.For, share: _Share, ring: _Ring, first: Var, run: int) -> Body:
    """Apply `run` updates of one place."""
    turn, values, here = Var(state.fresh("turn")), state.fresh("values"), Var(state.fresh("here"))
    load = _load_update(state, f, share, ring, cast(first + turn, i32), values, turn, run)
    change = k.unrolled(turn, run, _change_elements(share, values, turn))
    place = k.Declare(here.name, _place_in(ring, cast(first, i32)) + share.offset)
    return [
        k.Array(values, share.update.store.value.dtype, run * share.vector, "local", 16),
        *_guarded(share, k.unrolled(turn, run, *load)),
        place,
        *_guarded(share, _hold_elements(state, share, here)),
        *_guarded(share, change),
    ]


def _apply_few(state: Emission, f: tile.For, share: _Share, ring: _Ring, first: Var, ahead: int) -> Body:
    """Apply at most `ahead` updates, of any places."""
    turn, values, here = Var(state.fresh("turn")), state.fresh("values"), Var(state.fresh("here"))
    number = cast(first + turn, i32)
    loaded = _or_last(ring, number)  # if there are fewer than `ahead`, the last is loaded again
    load = _load_update(state, f, share, ring, loaded, values, turn, ahead)
    if share.update.store.op != "set":
        address = k.Address(array_of(state, share.update.store.buffer), here)
        asked = k.Declare(here.name, _place_in(ring, loaded) + share.offset)
        load = [asked, k.Call("mlc_prefetch", (), (address,)), *load]
    place = k.Declare(here.name, _place_in(ring, number) + share.offset)
    change = (place, _hold_elements(state, share, here), _change_elements(share, values, turn))
    return [
        k.Array(values, share.update.store.value.dtype, ahead * share.vector, "local", 16),
        *_guarded(share, k.unrolled(turn, ahead, *load)),
        *_guarded(share, k.unrolled(turn, ahead, k.If(op("lt", number, ring.found), change))),
    ]


def _load_update(
    state: Emission, f: tile.For, share: _Share, ring: _Ring, number: Expr, values: str, turn: Var, count: int
) -> Body:
    """Load what the update at this position of the ring adds, as the `turn`-th of `count`."""
    scope = share.scope.inner()
    scope.ranges[turn.name] = (0, count - 1)
    update_number = scope.values[f.var]
    assert isinstance(update_number, Var)
    named = k.Declare(update_number.name, cast(Load(ring.numbers, (ring.at(number),), i32), i64))
    return [named, *_load_addends(state, share, values, turn, scope)]


def _index(store: Store, f: tile.For, *, of_update: bool) -> tuple[Expr, ...]:
    """The index of a store with zeros for the axes that do not depend on the number of the update, or for those."""
    return tuple(i if (f.var in names(i)) == of_update else const(0, i.dtype) for i in store.index)


def _place_of_update(state: Emission, f: tile.For, store: Store, scope: Scope) -> Expr:
    """The flat index of an update's first element, as far as it depends on the number of the update."""
    return place_of(state, store.buffer, _index(store, f, of_update=True), scope)[1]


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


def _hold_elements(state: Emission, share: _Share, here: Var) -> k.Stmt:
    """Hold a lane's elements of the place `here` in registers, and write back those of another."""
    fetched = [] if share.update.store.op == "set" else [_fetch_elements(state, share, here)]
    moved = (_write_back(state, share), k.Assign(share.kept.name, here), *fetched)
    return k.If(op("ne", here, share.kept), moved)


def _change_elements(share: _Share, values: str, turn: Var) -> k.Stmt:
    """Update the elements of a lane that are in registers."""
    store = share.update.store
    value = Load(values, (turn * share.vector + share.neighbour,), store.value.dtype)
    return _for_each_element(share, k.Store(share.elements, share.neighbour, value, store.op))


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
