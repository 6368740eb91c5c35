"""Software-pipeline the two wgmma matmuls of an iteration: the last one overlaps the start of the next iteration.

```
for j: s = q . k[j]; w = f(s); o = g(o) + w . v[j]
```
becomes
```
s = q . k[0]; w = f(s)
for j from 1 on: start s = q . k[j]; start o += w . v[j - 1]; wait for s; f(s); wait for o; o = g(o); w = f(s)
o += w . v[last]
```
so that the other matmul hides what threads compute from s. The tiles of that matmul are one slot behind the others
and have a ring of their own.
"""

from __future__ import annotations

from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Var, const, fresh, op, substitute
from compiler.ir.isomorphism import renamed
from compiler.ir.roles import Arrive, Mbarrier
from compiler.ir.statement import If, Stmt
from compiler.passes.gpu import stages
from compiler.passes.gpu.facts import Facts, is_asynchronous
from compiler.passes.gpu.fragment_prefetch import bound_names
from compiler.passes.gpu.rings import PART, SlotRing

Body = tuple[Stmt, ...]


def ring_tiles(f: tile.For, used: frozenset[str], kernel: str) -> list[frozenset[str]]:
    """The tiles of a pipeline's rings, in the order in which the rings are filled."""
    if not stages.has_overlap(f):
        return [used]
    *others, last = stages.without_tiles(stages.split(f)[1], used)
    own = used & tile.buffers((last,)) - tile.buffers(tuple(others))
    if not own or own == used:
        raise ValueError(f"kernel {kernel}: the last matmul of {f.var} shares its tiles with the others")
    return [used - own, own]


def overlapped_loop(
    f: tile.For, statements: Body, rings: tuple[SlotRing, SlotRing], facts: Facts, taken: set[str]
) -> Body:
    """The statements that computing threads execute instead of the loop over `statements`."""
    ring, second_ring = rings
    at = _matmuls(f, statements, facts)
    last = statements[-1]
    assert isinstance(last, tile.Mma)
    begin = tuple(s for s in statements[: at + 1] if not isinstance(s, tile.Alloc))
    between = [s for s in statements[at + 1 : -1] if not isinstance(s, tile.Alloc)]
    held = {last.acc.buffer, last.a.buffer}
    free = next((n for n, s in enumerate(between) if tile.buffers((s,)) & held), len(between))
    independent, after = tuple(between[:free]), tuple(between[free:])

    def release(x: SlotRing) -> Body:
        """Release the current slot and advance to the next one."""
        return Arrive(Mbarrier(x.empty, x.slot("compute"))), x.advance("compute")

    def at_iteration(turn: Expr, body: Body) -> Body:
        return substitute(body, {Var(f.var): turn})

    table = {x: fresh(x, taken) for x in bound_names((*begin, *independent, *after))}
    loop_begin, loop_independent, loop_after = (
        tuple(renamed(s, table) for s in some) for some in (begin, independent, after)
    )
    first = (ring.wait("full", "compute"), *at_iteration(const(0), (*begin, *independent)), tile.Sync("wait_matmuls"))
    reads_ring = bool(tile.buffers(independent) & set(ring.tiles))
    freed = (
        (tile.Sync("warp_barrier"), *release(ring)) if reads_ring else release(ring)
    )  # once all threads of a warp have read
    opening = (*first, *freed, *at_iteration(const(0), after))
    turned = (*loop_independent, *freed) if reads_ring else (*freed, *loop_independent)
    body = (
        ring.wait("full", "compute"), *loop_begin, second_ring.wait("full", "compute"), last,
        tile.Sync("wait_matmuls", 1), *turned, tile.Sync("wait_matmuls"), *release(second_ring), *loop_after,
    )  # fmt: skip
    loop = f.replace(bind=PART, body=(If(op("lt", const(0), Var(f.var)), body),))
    closing = (
        second_ring.wait("full", "compute"),
        *at_iteration(f.extent - 1, (last,)),
        tile.Sync("wait_matmuls"),
        *release(second_ring),
    )
    whole = (*opening, loop, *closing)
    some = op("lt", const(0), f.extent)
    allocs = tuple(s for s in statements if isinstance(s, tile.Alloc))
    return (*allocs, *whole) if isinstance(some, Const) else (*allocs, If(some, whole))


def _matmuls(f: tile.For, statements: Body, facts: Facts) -> int:
    """The index of the first of the two matmuls of an iteration. Raises ValueError for other bodies."""
    at = [n for n, s in enumerate(statements) if isinstance(s, tile.Mma)]
    if len(at) != 2 or at[1] != len(statements) - 1:
        raise ValueError(f"kernel {facts.name}: {f.var} does not end with the second of two matmuls")
    if not all(is_asynchronous(facts.target, statements[n]) for n in at):
        raise ValueError(f"kernel {facts.name}: threads wait for the matmuls of {f.var}")
    return at[0]
