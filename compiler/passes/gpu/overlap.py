"""A pipeline whose last matmul of an iteration is made while the next iteration begins; both are matmuls of wgmma.

```
for j: s = q . k[j]; w = f(s); o = g(o) + w . v[j]
```
becomes
```
s = q . k[0]; w = f(s)
for j from 1 on: start s = q . k[j]; start o += w . v[j - 1]; wait for s; f(s); wait for o; o = g(o); w = f(s)
o += w . v[last]
```
so that what is computed of s by threads is hidden behind the other matmul. Tiles of that matmul are a slot behind the
others: these have a ring of barriers of their own.
"""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const, op
from compiler.ir.index import range_below, simplify
from compiler.ir.statement import Stmt
from compiler.passes.gpu import pipelines, stages, wgmma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered
from compiler.passes.gpu.prologue import Ring
from compiler.passes.gpu.scope import Scope
from compiler.passes.gpu.sequences import sequence

Body = list[k.Stmt]


def rings(state: Emission, f: tile.For, used: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """The rings of a pipeline, in the order in which they are filled, and the tiles of each."""
    if not stages.overlaps(f):
        return [(f.var, used)]
    *others, last = _statements(state, f, used)
    own = used & tile.buffers((last,)) - tile.buffers(tuple(others))
    if not own or own == used:
        raise ValueError(f"kernel {state.facts.name}: the last matmul of {f.var} shares its tiles with the others")
    return [(f.var, used - own), (stages.later(f), own)]


def wait(x: Ring) -> k.Stmt:
    """Until a slot is full."""
    return k.Call("mlc_mbarrier_wait", (), (k.Address(x.full, x.slot), x.phase), (x.full,))


def computed(state: Emission, f: tile.For, used: frozenset[str], scope: Scope) -> Body:
    """The loop of a pipeline without its copies, as the threads that compute run it."""
    ring, behind = state.rings[f.var], state.rings[stages.later(f)]
    every = _statements(state, f, used)
    matmuls = [n for n, s in enumerate(every) if isinstance(s, tile.Mma)]
    if len(matmuls) != 2 or matmuls[1] != len(every) - 1 or state.matmuls.blank:
        raise ValueError(f"kernel {state.facts.name}: {f.var} does not end with the second of two matmuls")
    first, last = every[matmuls[0]], every[-1]
    assert isinstance(first, tile.Mma)
    assert isinstance(last, tile.Mma)
    if not wgmma.is_asynchronous(state.facts, first) or not wgmma.is_asynchronous(state.facts, last):
        raise ValueError(f"kernel {state.facts.name}: threads wait for the matmuls of {f.var}")
    begin = tuple(s for s in every[: matmuls[0] + 1] if not isinstance(s, tile.Alloc))
    between = [s for s in every[matmuls[0] + 1 : -1] if not isinstance(s, tile.Alloc)]
    held = {last.acc.buffer, last.a.buffer}
    free = next((n for n, s in enumerate(between) if tile.buffers((s,)) & held), len(between))
    beside, after = tuple(between[:free]), tuple(between[free:])

    around = scope.inner()
    for x in (ring, behind):
        around.ranges[x.slot.name] = (0, x.depth - 1)
    for key, tiles in rings(state, f, used):
        pipelines.at(state, tiles, state.rings[key].slot)
    out: Body = wgmma.wait_all(state)
    out += sequence(state, tuple(s for s in every if isinstance(s, tile.Alloc)), around)
    extent = lowered(state, f.extent, scope)
    turns = range_below(extent, scope.ranges)

    def done(x: Ring) -> Body:
        """A slot is empty: the next one's turn."""
        arrive = k.Call("mlc_mbarrier_arrive", (), (k.Address(x.empty, x.slot),), (x.empty,))
        return [k.If(op("eq", state.lane(), const(0)), (arrive,)), *pipelines.next_slot(x.slot, x.phase, x.depth)]

    def at(turn: Expr, name: str = "") -> Scope:
        inner = around.inner()
        inner.values[f.var] = turn
        if name:
            inner.ranges[name] = turns
        return inner

    start = at(const(0))
    state.matmuls.latest = ""
    opening: Body = [
        wait(ring),
        *sequence(state, (*begin, *beside), start),
        *done(ring),
        *sequence(state, after, start),
    ]

    turn = Var(state.fresh(f.var))
    inner = at(turn, turn.name)
    state.matmuls.latest = ""
    body: Body = [wait(ring), *sequence(state, begin, inner), wait(behind), *sequence(state, (last,), inner)]
    array = (inner.registers or {})[first.acc.buffer]
    body.append(k.Call("mlc_wgmma_wait", (1,), ()))
    body.append(k.Call("mlc_wgmma_hold", (state.matmuls.running.pop(array),), (k.Address(array, const(0)),), (array,)))
    free_slot = done(ring)
    seen = bool(tile.buffers(beside) & used)
    body += [*sequence(state, beside, inner), *free_slot] if seen else [*free_slot, *sequence(state, beside, inner)]
    body += [*wgmma.wait_all(state), *done(behind), *sequence(state, after, inner)]

    closing: Body = [wait(behind), *sequence(state, (last,), at(extent - 1)), *wgmma.wait_all(state), *done(behind)]
    whole = [*opening, k.For(turn.name, const(1), extent, 1, tuple(body)), *closing]
    some = simplify(op("lt", const(0), extent), scope.ranges, index=True)
    return [*out, *whole] if isinstance(some, Const) else [*out, k.If(some, tuple(whole))]


def _statements(state: Emission, f: tile.For, used: frozenset[str]) -> tuple[Stmt, ...]:
    """What the threads that compute do in an iteration."""
    return stages.without_tiles(stages.split(f)[1], used)
