"""Loops over lanes that scan: each thread totals adjacent elements, then adds the total of the threads before it.

In each round, the threads of a block or a warp take adjacent runs. A thread's own running totals stay in registers
until the total of the threads before it is known; the total of a round is carried to the next.
"""

from __future__ import annotations

from compiler.analysis.nests import totalled
from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import COMBINE, Const, Expr, Load, Var, const, dim, identity, names, op, substitute
from compiler.ir.index import simplify
from compiler.ir.layout import ThreadMap
from compiler.ir.statement import Accum, Let, Stmt, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.value_ranges import range_below
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered, thread_of
from compiler.passes.gpu.lanes import Body, ThreadBody, thread_body, thread_map_of
from compiler.passes.gpu.scope import Scope

OPERATIONS = {"sum": "mlc_sum", "prod": "mlc_prod", "max": "mlc_maximum", "min": "mlc_minimum"}
LEAST_BITS = 32  # of exchanged values


def over_scan(state: Emission, f: tile.For, scope: Scope) -> Body:
    """Emit a scan. Raises ValueError for a loop that is no running total."""
    head = totalled(f.body)
    match head:
        case (*lets, Accum(name, how) as total) if name in scope.values and how in OPERATIONS:
            if scope.values[name].dtype.bits >= LEAST_BITS:
                return _scan(state, f, tuple(lets), total, f.body[len(head) :], scope)
    raise state.refuse(f"the scan {f.var} is no running total, which threads can share")


def _scan(
    state: Emission, f: tile.For, head: tuple[Stmt, ...], total: Accum, tail: tuple[Stmt, ...], scope: Scope
) -> Body:
    thread_map = thread_map_of(state, f, scope)
    count = simplify(lowered(state, f.extent, scope) // thread_map.vector, scope.ranges, index=True)
    high = range_below(count, scope.ranges)[1]
    if high is None:
        raise state.refuse(f"how long the scan {f.var} is must be known when compiling")
    carried = scope.values[total.name]
    assert isinstance(carried, Var)
    dtype, rounds = carried.dtype, high // thread_map.threads + 1
    kept, before, part = (state.fresh(f"{total.name}_{x}") for x in ("kept", "before", "part"))
    number, turn, lane = (Var(state.fresh(x)) for x in (f"{f.var}_vector", "turn", "lane"))
    held = Load(kept, (lane,), dtype)

    inner = scope.inner(level="thread")
    ahead = dict(f.bind.args).get("rounds", rounds)
    inner.ranges |= {number.name: (0, high), turn.name: (0, ahead - 1)}
    inner.buffers[kept] = Tensor(kept, dtype, (dim(thread_map.vector),), row_major((dim(thread_map.vector),)))
    inner.local |= {kept}
    inner.values[total.name] = Var(part, dtype)
    store = Store(kept, (lane,), Var(total.name, dtype))
    slot = turn if ahead > 1 else const(0)
    first = _scan_body(state, (*head, total, store), f.var, thread_map, inner, number, lane, slot, ahead)

    inner = inner.inner()
    so_far = op(COMBINE[total.op], carried, Load(before, (const(0),), dtype))
    inner.values[total.name] = op(COMBINE[total.op], so_far, held)
    body = _name_total(state, head, Var(total.name, dtype), tail)
    second = _scan_body(state, body, f.var, thread_map, inner, number, lane, const(0), 1)

    thread, group = thread_of(scope), Var(state.fresh("group"))
    inner.ranges[group.name] = (0, rounds - 1)
    start: Expr = const(0) if ahead == rounds else group
    place = (start + turn) * thread_map.threads + thread if ahead > 1 else start * thread_map.threads + thread
    exact = isinstance(count, Const) and int(count.value) % (ahead * thread_map.threads) == 0

    def guarded(made: Body) -> Body:
        return made if exact or not made else [k.If(op("lt", number, count), tuple(made))]

    def phase(made: Body) -> Body:
        made = [k.Declare(number.name, place), *made]
        return [k.unrolled(turn, ahead, *made)] if ahead > 1 else made

    scratch = state.scratch_for(dtype, thread_map.threads)
    where: Expr | k.Address = k.Address(scratch, const(0)) if scratch else k.Address(before, const(0))
    template = (OPERATIONS[total.op], thread_map.threads)
    args = (k.Address(before, const(0)), Var(part, dtype), identity(total.op, dtype), where)
    loads_first = ahead > 1 and bool(first.loads)
    made: Body = [
        k.Array(kept, dtype, thread_map.vector, "local", 16),
        k.Array(before, dtype, 2, "local", 16),
        k.Declare(part, identity(total.op, dtype)),
        *guarded([*([] if loads_first else [*first.arrays, *first.loads]), *first.rest]),
        k.Call("mlc_scan_before", template, args, (before, *([scratch] if scratch else []))),
        *guarded([*second.arrays, *second.loads, *second.rest]),
        k.Assign(carried.name, op(COMBINE[total.op], carried, Load(before, (const(1),), dtype))),
    ]
    made = [*first.arrays, *phase(guarded(first.loads)), *phase(made)] if loads_first else phase(made)
    return made if ahead == rounds else [k.For(group.name, const(0), const(rounds), ahead, tuple(made), "rolled")]


def _name_total(state: Emission, head: tuple[Stmt, ...], total: Var, tail: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements that use the total at an element, under a fresh name, with the values that they need."""
    here = Let(state.fresh(f"{total.name}_here"), total)
    used = any(s.name in names(t) for s in head if isinstance(s, Let) for t in tail)
    return (here, *(head if used else ()), *substitute(tail, {total: Var(here.name, total.dtype)}))


def _scan_body(
    state: Emission, body: tuple[Stmt, ...], var: str, thread_map: ThreadMap, inner: Scope, number: Var, lane: Var,
    turn: Expr, rounds: int,
) -> ThreadBody:  # fmt: skip
    """A body for each element of a thread's run in a round."""
    inner.ranges[lane.name] = (0, thread_map.vector - 1)
    inner.values[var] = number * thread_map.vector + lane
    inner.values[lane.name] = lane
    return thread_body(state, body, inner, lane, thread_map.vector, turn * thread_map.vector, rounds)
