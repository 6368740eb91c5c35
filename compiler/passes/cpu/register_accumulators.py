"""Keep in registers what a loop accumulates at a data-dependent place, until the place changes (Kernel IR, for CPUs).

Consecutive iterations often add to the same elements, as with a bag or a sorted segment. The elements are loaded and
stored only when the place changes, and no iteration waits for the store of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.ir import dtype as dt
from compiler.ir import kernel as k
from compiler.ir.dtype import i64
from compiler.ir.expr import COMBINE, Const, Expr, Load, Var, const, fresh, op, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import from_linear, linear
from compiler.ir.rewrite import nodes, replaced

MOST_VECTORS = 8  # vectors kept in registers
NOWHERE = const(-1)

Body = tuple[k.Stmt, ...]


def keep_accumulators(program: k.Program) -> k.Program:
    """Hold vectors that a loop accumulates at a data-dependent place until the place changes:

        for r in range(0, 100, 1):
            at: i64 = index[r]
            y[at * 16] += x[r * 16, f32x16]
    becomes

        held: i64 = -1
        y_held: f32x16 = broadcast(0.0, 16)
        for r in range(0, 100, 1):
            at: i64 = index[r]
            place: i64 = at * 16
            if place != held:
                if held != -1:
                    y[held] = y_held
                y_held = y[place, f32x16]
                held = place
            y_held = y_held + x[r * 16, f32x16]
        if held != -1:
            y[held] = y_held
    """
    return program.replace(functions=tuple(map(_function, program.functions)))


def _function(f: k.Function) -> k.Function:
    every = [n for s in f.body for n in s.walk()]
    if not any(isinstance(n, k.Store) and n.op != "set" for n in every):
        return f
    taken = {p.name for p in f.params} | {n.name for n in every if isinstance(n, k.Declare | k.Array | Var)}
    taken |= {n.var for n in every if isinstance(n, k.For)}
    return f.replace(body=_body(f.body, taken))


def _body(body: Body, taken: set[str]) -> Body:
    """Transform the outermost serial loops in which something can be held."""
    out: list[k.Stmt] = []
    for s in body:
        if isinstance(s, k.For) and s.mark != "parallel" and (found := _find_updates(s)) is not None:
            out += _hold_in_loop(s, found, taken)
        elif isinstance(s, k.For | k.If):
            out.append(s.replace(body=_body(s.body, taken)))
        else:
            out.append(s)
    return tuple(out)


@dataclass(frozen=True)
class _Updates:
    """The statement `last` accumulates `values` into a buffer, at constant `distances` from `place`."""

    last: k.Stmt
    buffer: str
    op: str
    place: Expr
    distances: tuple[int, ...]
    values: tuple[Expr, ...]
    declared: Body

    def at(self, place: Expr) -> list[Expr]:
        """The indices of these vectors relative to `place`."""
        return [simplify(place + d, {}) for d in self.distances]


def _find_updates(f: k.For) -> _Updates | None:
    """A loop's only accesses to some buffer, if they accumulate vectors near a data-dependent place; else None."""
    own = {n.name for n in f.walk() if isinstance(n, k.Declare)}
    for s, last in _innermost_statements(f.body):
        stores = [x for x in last if isinstance(x, k.Store)]
        found = _match_updates(s, tuple(x for x in last if not isinstance(x, k.Store)), stores)
        if found is None:
            continue
        touched = sum(_accesses_buffer(n, found.buffer) for n in f.walk())
        is_data_dependent = any(
            isinstance(n, Load) or (isinstance(n, Var) and n.name in own) for n in found.place.walk()
        )
        if is_data_dependent and touched == len(stores):
            return found
    return None


def _innermost_statements(body: Body) -> Iterator[tuple[k.Stmt, Body]]:
    """Innermost stores and loops of one iteration, each with the statements that it executes."""
    for s in body:
        match s:
            case k.For(var, Const(start), Const(stop), step, inner) if start < stop <= start + step:
                yield s, substitute(inner, {Var(var): const(start)})
            case k.For() | k.If():
                yield from _innermost_statements(s.body)
            case k.Store():
                yield s, (s,)


def _match_updates(last: k.Stmt, others: Body, stores: list[k.Store]) -> _Updates | None:
    if not 0 < len(stores) <= MOST_VECTORS or not all(isinstance(s, k.Declare) for s in others):
        return None
    first = stores[0]
    places = [linear(simplify(s.index, {})) for s in stores]
    alike = all((s.buffer, s.op, s.value.dtype) == (first.buffer, first.op, first.value.dtype) for s in stores)
    # Narrower elements are rounded after each addition.
    wide = first.value.dtype.lanes > 1 and first.value.dtype.bits >= 32
    if first.op == "set" or not wide or not alike or any(p[0] != places[0][0] for p in places):
        return None
    place, values = from_linear((places[0][0], 0)), tuple(s.value for s in stores)
    return _Updates(last, first.buffer, first.op, place, tuple(rest for _, rest in places), values, others)


def _accesses_buffer(n: object, buffer: str) -> bool:
    match n:
        case Load() | k.Gather() | k.Store() | k.Address():
            return n.buffer == buffer
        case k.Call():
            return buffer in n.writes
    return False


def _hold_in_loop(f: k.For, u: _Updates, taken: set[str]) -> Body:
    """The loop with its sums held in registers."""
    last = Var(fresh(f"{u.buffer}_last", taken), i64)
    place = Var(fresh(f"{u.buffer}_place", taken), i64)
    kept = [Var(fresh(f"{u.buffer}_held", taken), v.dtype) for v in u.values]
    first = (k.Declare(v.name, k.Broadcast(const(0, dt.vector(v.dtype, 1)), v.dtype.lanes)) for v in kept)
    stored = k.If(
        op("ne", last, NOWHERE), tuple(k.Store(u.buffer, at, v) for at, v in zip(u.at(last), kept, strict=True))
    )
    loaded = (k.Assign(v.name, Load(u.buffer, (at,), v.dtype)) for at, v in zip(u.at(place), kept, strict=True))
    inside: Body = (
        *u.declared,
        k.Declare(place.name, u.place),
        k.If(op("ne", place, last), (stored, *loaded, k.Assign(last.name, place))),
        *(k.Assign(v.name, op(COMBINE[u.op], v, x)) for v, x in zip(kept, u.values, strict=True)),
    )
    loop = nodes(replaced((f,), u.last, inside), _without_unroll)
    return (k.Declare(last.name, NOWHERE), *first, *loop, stored)


def _without_unroll(n: object) -> k.For | None:
    """Remove `unroll` from loops around a held sum: unrolled, they would be too much text."""
    return n.replace(mark="") if isinstance(n, k.For) and n.mark == "unroll" else None
