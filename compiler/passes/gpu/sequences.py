"""Sequences of statements: syncs between them, and waits for asynchronous operations."""

from __future__ import annotations

from itertools import takewhile

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import boolean
from compiler.ir.expr import Const, Expr, Op, Var, const, op
from compiler.ir.index import simplify
from compiler.ir.roles import Mbarriers, RingStmt, Wait
from compiler.ir.statement import If, Stmt, within
from compiler.ir.value_ranges import range_below
from compiler.passes.gpu import wgmma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import barrier, lowered
from compiler.passes.gpu.rings import is_part
from compiler.passes.gpu.scope import THREAD, Scope

Body = list[k.Stmt]


def emit(state: Emission, s: Stmt, scope: Scope) -> Body:
    """Emit one statement by the handler of its kind."""
    return state.dispatch(state, s, scope)


def sequence(state: Emission, body: tuple[Stmt, ...], scope: Scope) -> Body:
    """Emit statements in order, with the waits that earlier asynchronous matmuls make necessary."""
    out: Body = []
    for n, s in enumerate(body):
        if scope.level == "block":
            zero = wgmma.zeroed_accumulator(state, s, body[n + 1 :])
            if zero:
                state.matmuls.blank[zero] = Const(True, boolean)
                continue
            out += _waits_before(state, body[n:], scope)
        out += emit(state, s, scope)
    return out


def _waits_before(state: Emission, body: tuple[Stmt, ...], scope: Scope) -> Body:
    """Waits for matmuls whose data the next statement accesses, before the barrier or mbarrier in front of it."""
    between = tuple(takewhile(lambda s: isinstance(s, tile.Sync | Mbarriers | Wait), body))
    syncs = tuple(takewhile(lambda s: isinstance(s, tile.Sync), between))
    if len(between) == len(body) or (syncs and tile.Sync("barrier") not in syncs):
        return []
    s = body[len(between)]
    return [] if isinstance(s, RingStmt) else wgmma.wait_if_touched(state, s, scope)


def emit_sync(state: Emission, s: tile.Sync, scope: Scope) -> Body:
    """Emit a Sync."""
    match s.what:
        case "barrier":
            return [barrier(state, scope)]
        case "fence_async":
            return [k.Call("mlc_fence_async", (), ())]
        case "commit_copies":
            return [k.Call("mlc_cp_async_commit", (), ())]
        case "wait_copies":
            return [k.Call("mlc_cp_async_wait", (s.pending,), ())]
        case "wait_matmuls":
            return wgmma.wait_for_all_but(state, s.pending) if s.pending else wgmma.wait_all(state)
        case "warp_barrier":
            return [k.Barrier("warp")]
    # The thread that issues copies out of shared memory waits until they have read it.
    return [k.If(op("eq", THREAD, const(0)), (k.Call("mlc_bulk_wait_read", (0,), ()),))]


def loop(state: Emission, f: tile.For, scope: Scope) -> Body:
    """A serial loop of each thread.

    In a role's part of a pipeline, matmuls may run into the next iteration, and the first one initialises its
    accumulator.
    """
    if f.extent is const(0):
        return []
    part = is_part(f)
    before = wgmma.wait_all(state) if part else []
    var = state.fresh(f.var)
    extent = lowered(state, f.extent, scope)
    inner = scope.inner()
    inner.values[f.var], inner.ranges[var] = Var(var), range_below(extent, scope.ranges)
    start, statements = (0, f.body)
    begun = wgmma.initialised_by(state, f, Var(var))
    if part:
        start, statements = _first_iteration(f)
        state.matmuls.more = _has_next_iteration(f, Var(var), extent, inner)
    body = sequence(state, statements, inner) if part else loop_body(state, f.body, inner)
    state.matmuls.more, state.matmuls.idle = None, state.matmuls.more is not None
    mark = "unroll" if f.bind.level == "unroll" else ""
    zeros = wgmma.zero_after_loop(state, begun, extent, scope)
    return [*before, k.For(var, const(start), extent, 1, tuple(body), mark), *zeros] if body else before


def _has_next_iteration(f: tile.For, turn: Expr, extent: Expr, scope: Scope) -> Expr | None:
    """Whether another iteration follows in a loop that ends with matmuls in flight; None for other loops."""
    waits = [n for n in within(f.body, tile.Sync) if n.what == "wait_matmuls"]
    if not waits or not waits[-1].pending:
        return None
    return simplify(op("lt", turn + 1, extent), scope.ranges, index=True)


def _first_iteration(f: tile.For) -> tuple[int, tuple[Stmt, ...]]:
    """The first iteration that does anything, and its statements."""
    match f.body:
        case (If(Op("lt", (Const(int() as n), Var(name))), body),) if name == f.var:
            return n + 1, body
    return 0, f.body


def loop_body(state: Emission, statements: tuple[Stmt, ...], scope: Scope) -> Body:
    """The statements of a loop, with a wait for all matmuls at its end."""
    body = sequence(state, statements, scope)
    return [*body, *wgmma.wait_all(state)] if scope.level != "thread" else body
