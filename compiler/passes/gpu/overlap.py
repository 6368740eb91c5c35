"""A pipeline whose last product of an iteration is made while the next iteration begins; both are products of wgmma.

```
for j: s = q . k[j]; w = f(s); o = g(o) + w . v[j]
```
becomes
```
s = q . k[0]; w = f(s)
for j from 1 on: start s = q . k[j]; start o += w . v[j - 1]; wait for s; f(s); wait for o; o = g(o); w = f(s)
o += w . v[last]
```
so that what is computed of s by threads is hidden behind the other product. Tiles of that product are a slot behind the
others: these have a ring of barriers of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const, op
from compiler.ir.index import range_below, simplify
from compiler.ir.statement import Stmt
from compiler.passes.gpu import pipelines, wgmma
from compiler.passes.gpu.hazards import touched
from compiler.passes.gpu.scope import Scope
from compiler.passes.gpu.signals import Ring

if TYPE_CHECKING:
    from compiler.passes.gpu.threads import Lowering

Body = list[k.Stmt]


def asked(f: tile.For) -> bool:
    return bool(dict(f.bind.args).get("overlap"))


def later(f: tile.For) -> str:
    """The key of the ring of what only the last product reads."""
    return f"{f.var} later"


def rings(low: Lowering, f: tile.For, used: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """The rings of a pipeline, in the order in which they are filled, and the tiles of each."""
    if not asked(f):
        return [(f.var, used)]
    *others, last = _statements(low, f, used)
    own = used & tile.buffers((last,)) - tile.buffers(tuple(others))
    if not own or own == used:
        raise ValueError(f"kernel {low.source.name}: the last product of {f.var} shares its tiles with the others")
    return [(f.var, used - own), (later(f), own)]


def computed(low: Lowering, f: tile.For, used: frozenset[str], scope: Scope) -> Body:
    """The loop of a pipeline without its copies, as the threads that compute run it."""
    ring, behind = low.rings[f.var], low.rings[later(f)]
    every = _statements(low, f, used)
    products = [n for n, s in enumerate(every) if isinstance(s, tile.Mma)]
    if len(products) != 2 or products[1] != len(every) - 1 or low.blank:
        raise ValueError(f"kernel {low.source.name}: {f.var} does not end with the second of two products")
    first, last = every[products[0]], every[-1]
    assert isinstance(first, tile.Mma)
    assert isinstance(last, tile.Mma)
    if not wgmma.is_asynchronous(low, first) or not wgmma.is_asynchronous(low, last):
        raise ValueError(f"kernel {low.source.name}: threads wait for the products of {f.var}")
    begin = tuple(s for s in every[: products[0] + 1] if not isinstance(s, tile.Alloc))
    between = [s for s in every[products[0] + 1 : -1] if not isinstance(s, tile.Alloc)]
    held = {last.acc.buffer, last.a.buffer}
    free = next((n for n, s in enumerate(between) if tile.buffers((s,)) & held), len(between))
    beside, after = tuple(between[:free]), tuple(between[free:])

    around = scope.inner(ordered=scope.ordered | used)
    for x in (ring, behind):
        around.ranges[x.slot.name] = (0, x.depth - 1)
    for key, tiles in rings(low, f, used):
        pipelines.at(low, tiles, low.rings[key].slot)
    out: Body = wgmma.finish(low)
    out += low.sequence(tuple(s for s in every if isinstance(s, tile.Alloc)), around)
    if low.hazards.between(touched(f, around)):
        raise ValueError(f"kernel {low.source.name}: iterations of {f.var} meet in shared memory")
    extent = low.value(f.extent, scope)
    turns = range_below(extent, scope.ranges)

    def wait(x: Ring) -> k.Stmt:
        return k.Call("mlc_mbarrier_wait", (), (k.Address(x.full, x.slot), x.phase), (x.full,))

    def done(x: Ring) -> Body:
        """A slot is empty: the next one's turn."""
        arrive = k.Call("mlc_mbarrier_arrive", (), (k.Address(x.empty, x.slot),), (x.empty,))
        return [k.If(op("eq", low.lane(), const(0)), (arrive,)), *pipelines.next_slot(x.slot, x.phase, x.depth)]

    def at(turn: Expr, name: str = "") -> Scope:
        inner = around.inner()
        inner.values[f.var] = turn
        if name:
            inner.ranges[name] = turns
        return inner

    start = at(const(0))
    low.adding = ""
    opening: Body = [wait(ring), *low.sequence((*begin, *beside), start), *done(ring), *low.sequence(after, start)]

    turn = Var(low.fresh(f.var))
    inner = at(turn, turn.name)
    low.adding = ""
    body: Body = [wait(ring), *low.sequence(begin, inner), wait(behind), *low.sequence((last,), inner)]
    array = (inner.registers or {})[first.acc.buffer]
    body.append(k.Call("mlc_wgmma_wait", (1,), ()))
    body.append(k.Call("mlc_wgmma_hold", (low.flight.pop(array),), (k.Address(array, const(0)),), (array,)))
    free_slot = done(ring)
    seen = bool(tile.buffers(beside) & used)
    body += [*low.sequence(beside, inner), *free_slot] if seen else [*free_slot, *low.sequence(beside, inner)]
    body += [*wgmma.finish(low), *done(behind), *low.sequence(after, inner)]

    closing: Body = [wait(behind), *low.sequence((last,), at(extent - 1)), *wgmma.finish(low), *done(behind)]
    whole = [*opening, k.For(turn.name, const(1), extent, 1, tuple(body)), *closing]
    some = simplify(op("lt", const(0), extent), scope.ranges, index=True)
    return [*out, *whole] if isinstance(some, Const) else [*out, k.If(some, tuple(whole))]


def _statements(low: Lowering, f: tile.For, used: frozenset[str]) -> tuple[Stmt, ...]:
    """What the threads that compute do in an iteration."""
    return pipelines.rest_of(pipelines.split(f, low)[1], used)
