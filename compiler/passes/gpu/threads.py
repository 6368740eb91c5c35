"""Lower Tile IR to Kernel IR for GPUs: loops over blocks become the grid, loops over lanes are shared by threads.

Statements outside of loops over lanes are executed by all threads alike, except stores, which one thread executes.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import i64
from compiler.ir.expr import COMBINE, Const, Expr, Var, const, op, static
from compiler.ir.launches import cluster_loop, is_bound
from compiler.ir.roles import Arrive, One, RingStmt
from compiler.ir.statement import Accum, If, Init, Let, Program, Stmt, Store
from compiler.ir.tensor import Tensor, span
from compiler.ir.value_ranges import value_range
from compiler.passes.gpu import (
    barriers,
    block_groups,
    copies,
    fragment_loops,
    group_barriers,
    lanes,
    mma,
    pipelines,
    role_blocks,
    role_protocol,
    vectorize,
    votes,
    wgmma,
)
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered, place_of, thread_of
from compiler.passes.gpu.facts import Facts, facts_of
from compiler.passes.gpu.grids import grid
from compiler.passes.gpu.rings import is_part
from compiler.passes.gpu.scans import over_scan
from compiler.passes.gpu.scope import THREAD, WARP, Role, Scope
from compiler.passes.gpu.sequences import emit_sync, loop, sequence
from compiler.targets.target import Target

Body = list[k.Stmt]


def tile_to_threads(program: Program, target: Target, schedules: Mapping[str, str] = {}) -> k.Program:
    """Lower every kernel to one function. `schedules` has texts to quote in its head, by kernel name."""
    kernels = [facts_of(kernel, target) for kernel in program.kernels]
    vectorize.verify(program)
    barriers.verify(program, target)
    role_protocol.verify(program, target)
    functions: list[k.Function] = []
    parts: list[Tensor] = []
    zeros: list[Tensor] = []
    for facts in kernels:
        made, exchanged = function(facts, schedules.get(facts.kernel.whole or facts.name, ""))
        functions.append(made)
        parts += exchanged[:1]
        zeros += exchanged[1:]
    return k.Program(
        program.name, program.inputs, program.outputs, (*program.temps, *parts, *zeros), tuple(functions),
        program.sizes, tuple(t.name for t in zeros),
    )  # fmt: skip


def function(facts: Facts, schedule: str) -> tuple[k.Function, tuple[Tensor, ...]]:
    """The function of a kernel, and its own temporaries: partial results, and tickets of the blocks that made them."""
    s = facts.kernel
    state = Emission(facts=facts, taken={p.name for p in s.params}, dispatch=_statement)
    params = {p.name: p for p in s.params}
    scope = Scope({}, ChainMap({}, state.known), params, Role(facts.threads), multiples=state.multiples)
    body, axes = s.body, []
    while len(body) == 1 and is_bound(body[0], "blocks"):
        axes.append(body[0])
        body = body[0].body
    found = block_groups.split(body)
    sharing = cluster_loop(s.body)
    if sharing is not None:
        body = sharing.body if body == (sharing,) else body
        axes.append(sharing)
        state.cluster = static(sharing.extent, f"the number of blocks of {sharing.var}")
    shape, start = grid(state, axes if found is None else [*axes, found[1]], scope)
    if found is not None:
        group_barriers.set_up_group(state, *found[:2], axes, scope)
        body = (*found[1].body, block_groups.GroupBarrier(found[0].tensor.name, found[2]))
    if facts.specialised:
        extra_threads, inside = role_blocks.roles(state, body, scope)
    else:
        extra_threads, inside = 0, [*sequence(state, body, scope), *wgmma.wait_all(state)]
    arrays = [k.Array(name, dtype, size, "shared", 16) for name, (dtype, size) in state.scratch.items()]
    made = (*state.arrays, *arrays, *state.start, *start, *inside)
    maps = tuple(k.TensorMap(name, *described) for described, name in state.maps.items())
    block = (facts.threads + extra_threads, 1, 1)
    own = tuple(t.name for t in state.exchanged)
    cluster = state.group.count if state.group is not None and state.group.cluster else state.cluster
    return k.Function(
        s.name, (*s.params, *state.exchanged), (*s.writes, *own), made, shape, block, s.origin, schedule, maps,
        cluster, own,
    ), state.exchanged  # fmt: skip


def _statement(state: Emission, s: Stmt, scope: Scope) -> Body:
    match s:
        case tile.For(bind=tile.Bind(level="lanes")) if scope.part is not None and not scope.part.columns:
            return fragment_loops.over_columns(state, s, scope)
        case tile.For(kind="scan", bind=tile.Bind(level="lanes")) if scope.level != "thread":
            return over_scan(state, s, scope)
        case tile.For(bind=tile.Bind(level="lanes")) if scope.level != "thread":
            fragment = fragment_loops.fragment_of(state, s) if scope.level == "block" else None
            if fragment is not None:
                stored = fragment_loops.store_by_matrices(state, s, fragment, scope)
                return fragment_loops.over_rows(state, s, fragment, scope) if stored is None else stored
            return lanes.over_lanes(state, s, scope)
        case tile.For(bind=tile.Bind(level="pipeline")) if scope.level == "block":
            return pipelines.pipeline(state, s, scope)
        case tile.Copy() if scope.level == "block" or s.full is not None:
            return copies.copy(state, s, scope)
        case tile.Sync():
            return emit_sync(state, s, scope)
        case tile.Mma() if scope.level == "block":
            return mma.multiply(state, s, scope)
        case tile.For(bind=tile.Bind(level="warps")) if scope.level == "block":
            return _over_warps(state, s, scope)
        case tile.For(bind=tile.Bind(level="cluster")) if s.var in scope.values:  # each block executes its iteration
            return sequence(state, s.body, scope)
        case tile.For(bind=tile.Bind(level="blocks")) if scope.level == "block":
            return group_barriers.over_blocks(state, s, scope)
        case block_groups.GroupBarrier():
            return group_barriers.group_barrier(state, s, scope)
        case tile.For(bind=tile.Bind(level="columns")) if scope.level == "block":
            return _over_columns(state, s, scope)
        case tile.For(bind=tile.Bind(level="blocks" | "warps" | "columns" | "pipeline" as level)) if not is_part(s):
            raise state.refuse(f"the loop {s.var} over {level} is inside {scope.level}s")
        case tile.For(bind=tile.Bind(level="vector"), extent=Const(int() as vector)) if scope.level == "thread":
            return lanes.over_vector(state, s, scope, vector)
        case tile.For(bind=tile.Bind(level="votes")):
            return votes.over_votes(state, s, scope)
        case tile.For():
            return loop(state, s, scope)
        case Let(name, value):
            value = lowered(state, value, scope)
            if isinstance(value, Const | Var):
                scope.values[name] = value
                return []
            return [_declare(state, name, value, scope)]
        case Init(name, value):
            return [_declare(state, name, lowered(state, value, scope), scope, varies=True)]
        case Accum(name, how, value):
            old = scope.values[name]
            assert isinstance(old, Var)
            return [k.Assign(old.name, op(COMBINE[how], old, lowered(state, value, scope)))]
        case Store():
            return _store(state, s, scope)
        case RingStmt() | One() | If(body=(Arrive(),)):
            return role_blocks.emit_signal(state, s, scope)
        case If():
            return _if(state, s, scope)
        case tile.Alloc():
            return _alloc(state, s, scope)
    raise state.refuse(f"{type(s).__name__} has no meaning for threads")


def _if(state: Emission, s: If, scope: Scope) -> Body:
    cond, body = lowered(state, s.cond, scope), sequence(state, s.body, scope.inner())
    if isinstance(cond, Const):
        return body if cond.value else []
    return [k.If(cond, tuple(body))]


def _declare(state: Emission, name: str, value: Expr, scope: Scope, varies: bool = False) -> k.Stmt:
    """Declare a variable. With `varies` it is accumulated into, so that its first value does not bound its range."""
    made = state.fresh(name)
    scope.values[name] = Var(made, value.dtype)
    if value.dtype is i64 and not varies:
        scope.ranges[made] = value_range(value, scope.ranges)
    return k.Declare(made, value)


def _store(state: Emission, s: Store, scope: Scope) -> Body:
    value = lowered(state, s.value, scope)
    buffer, place = place_of(state, s.buffer, s.index, scope)
    if scope.gathered.get(s.buffer, ("", None))[1] is place:
        array, lane = scope.gathered[s.buffer][0], scope.values["neighbour"]
        return [k.Store(array, lane, value)]
    made = k.Store(buffer, place, value, s.op)
    if scope.part is not None and not scope.part.columns and s.buffer not in scope.registers:
        return [k.If(fragment_loops.is_first_sharer(state, scope.part.fragment), (made,))]
    if scope.level == "thread" or s.buffer in scope.registers:
        return [made]
    first = op("eq", thread_of(scope), const(0))
    return [k.If(first, (made,))]


def _alloc(state: Emission, s: tile.Alloc, scope: Scope) -> Body:
    tensor = s.tensor
    state.taken.add(tensor.name)
    scope.buffers[tensor.name] = tensor
    if tensor.name in state.facts.fragments and scope.level == "block":
        array = tensor.name if tensor.name not in scope.registers else state.fresh(tensor.name)
        scope.registers = {**scope.registers, tensor.name: array}
        return [k.Array(array, tensor.dtype, state.facts.fragments[tensor.name].count, "local", 16)]
    if scope.level == "thread":
        scope.local |= {tensor.name}
        return [k.Array(tensor.name, tensor.dtype, span(tensor), "local", 16)]
    if s.space == "shared" and scope.level == "block":
        state.allocate(s, s.slots)
        return []
    if s.space != "registers":
        raise state.refuse(
            f"tile {tensor.name} of a {scope.level} is in {s.space} memory, which its threads do not share"
        )
    return lanes.register_slice(s, scope)


def _over_warps(state: Emission, f: tile.For, scope: Scope) -> Body:
    """One iteration per warp."""
    extent = lowered(state, f.extent, scope)
    most = value_range(extent, scope.ranges)[1]
    if most is None or most > scope.role.threads // WARP:
        raise state.refuse(f"{f.var} has more iterations than a block has warps")
    inner = scope.inner(level="warp")
    var, lane = state.fresh(f.var), state.fresh("lane")
    inner.values[f.var], inner.values["lane"] = Var(var), Var(lane)
    inner.ranges[var], inner.ranges[lane] = (0, most - 1), (0, WARP - 1)
    start: Body = [k.Declare(var, THREAD // WARP), k.Declare(lane, THREAD % WARP)]
    body = sequence(state, f.body, inner)
    if extent is const(scope.role.threads // WARP):
        return [*start, *body]
    return [*start, k.If(op("lt", Var(var), extent), tuple(body))]


def _over_columns(state: Emission, f: tile.For, scope: Scope) -> Body:
    """One iteration per lane, shared by that lane of all warps."""
    if lowered(state, f.extent, scope) is not const(WARP):
        raise state.refuse(f"{f.var} must have an iteration for each of {WARP} lanes")
    inner = scope.inner(level="column")
    var, warp = state.fresh(f.var), state.fresh("warp")
    inner.values[f.var], inner.values["warp"] = Var(var), Var(warp)
    inner.ranges[var], inner.ranges[warp] = (0, WARP - 1), (0, scope.role.threads // WARP - 1)
    start: Body = [k.Declare(var, THREAD % WARP), k.Declare(warp, THREAD // WARP)]
    return [*start, *sequence(state, f.body, inner)]
