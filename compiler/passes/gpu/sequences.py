"""Statements that follow each other: barriers between those that touch the same memory, fences, waits for matmuls."""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import boolean
from compiler.ir.expr import Const, Var, const
from compiler.ir.index import range_below
from compiler.ir.statement import Stmt, Store
from compiler.passes.gpu import predicates, stages, tma, wgmma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import barrier, lowered
from compiler.passes.gpu.hazards import Uses, touched
from compiler.passes.gpu.scope import Scope

Body = list[k.Stmt]


def emit(state: Emission, s: Stmt, scope: Scope, after: tuple[Stmt, ...] = ()) -> Body:
    """One statement, by what is known of statements of its kind; those `after` it are for what looks ahead."""
    return state.dispatch(state, s, scope, after)


def sequence(state: Emission, body: tuple[Stmt, ...], scope: Scope) -> Body:
    """Statements in order, with the barriers, fences and waits that those before them make needed."""
    out: Body = []
    for n, s in enumerate(body):
        if scope.level == "block":
            zero = wgmma.zeroed_accumulator(state, s, body[n + 1 :])
            if zero:
                state.matmuls.blank[zero] = Const(True, boolean)
                continue
            out += wgmma.wait_if_touched(state, s, scope)
            out += _fenced(state, s, scope)
        if scope.level != "thread" and not predicates.is_compound(s):
            uses = touched(s, scope)
            if state.hazards.between(uses):
                out.append(barrier(state, scope))
                state.hazards.clear()
            out += emit(state, s, scope, body[n + 1 :])
            # All threads have waited for what the copy engine brings.
            brought = isinstance(s, tile.Copy) and s.how == "tma" and s.target.buffer in state.shared
            # What it takes away is waited for before threads store there again.
            reads = uses.reads - scope.stored_in_loop if isinstance(s, tile.Copy) and s.how == "tma" else uses.reads
            state.hazards.add(Uses(reads, frozenset() if brought else uses.writes))
        else:
            out += emit(state, s, scope, body[n + 1 :])
    return out


def _fenced(state: Emission, s: Stmt, scope: Scope) -> Body:
    """Before the copy engine or wgmma reads what threads have stored: a fence of each, and a barrier."""
    reads: set[str] = set()
    if wgmma.is_asynchronous(state.facts, s):
        assert isinstance(s, tile.Mma)
        reads = {s.a.buffer, s.b.buffer}
    elif isinstance(s, tile.Copy) and s.how == "tma":
        reads = {s.source.buffer}
    stored = {x.buffer for x in s.walk() if isinstance(x, Store)}
    stored |= {x.target.buffer for x in s.walk() if isinstance(x, tile.Copy) and x.how != "tma"}
    out: Body = []
    if state.awaited is not None and tile.buffers((s,)) & state.awaited[0]:
        out, state.awaited = [state.awaited[1]], None
    if stored & scope.stored_in_loop:
        out += [tma.store_read(), barrier(state, scope)]
        state.hazards.clear()
    if reads & state.unfenced:
        out += [k.Call("mlc_fence_async", (), ()), barrier(state, scope)]
        state.hazards.clear()
        state.unfenced.clear()
    state.unfenced |= stored & state.facts.in_shared
    return out


def loop(state: Emission, f: tile.For, scope: Scope) -> Body:
    """A loop that each thread runs through."""
    if f.extent is const(0):
        return []
    var = state.fresh(f.var)
    extent = lowered(state, f.extent, scope)
    inner = scope.inner()
    inner.values[f.var], inner.ranges[var] = Var(var), range_below(extent, scope.ranges)
    inner.stored_in_loop = scope.stored_in_loop | tma.stored_each_iteration(state.facts, f)
    before: Body = []
    if scope.level != "thread" and state.hazards.between(touched(f, scope)):
        before.append(barrier(state, scope))  # once, rather than in each iteration
        state.hazards.clear()
    body = loop_body(state, f, f.body, inner)
    new = inner.stored_in_loop - scope.stored_in_loop
    mark = "unroll" if f.bind.level == "unroll" else ""
    made = k.For(var, const(0), extent, 1, tuple(body), mark)
    return [*before, made, *([tma.store_read()] if new else [])] if body else before


def loop_body(
    state: Emission, f: tile.For, statements: tuple[Stmt, ...], scope: Scope, synchronized: bool = False
) -> Body:
    """The statements of a loop, and a barrier where one iteration touches what the one before did.

    Where each iteration begins with one, threads are `synchronized` anyway.
    """
    before = state.hazards.copy()
    body = sequence(state, statements, scope)
    if scope.level != "thread":
        uses = touched(f, scope)
        if f.kind == "parallel":  # iterations share tiles, but nothing in global memory
            uses = Uses(*(frozenset(b for b in some if b in state.facts.tiles) for some in (uses.reads, uses.writes)))
        if (state.hazards.between(uses) or predicates.exchanges(body)) and not synchronized:
            body.append(barrier(state, scope))
            state.hazards.clear()
        state.hazards.join(before)
        if not stages.is_specialised(f):
            body += wgmma.wait_all(state)
    return body
