"""Wide accesses: accesses of adjacent iterations to adjacent elements, as one load or store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from compiler.analysis import access
from compiler.analysis.replacement import replacing_store
from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Const, Expr, Load, Op, Select, Var, both, const, names, op, substitute
from compiler.ir.expr import loads as loads_in
from compiler.ir.linear import from_linear, linear
from compiler.ir.multiples import Multiples, divides
from compiler.ir.statement import Accum, Init, Let, Stmt, Store, within
from compiler.passes.gpu.scope import Scope

Place = Callable[[str, tuple[Expr, ...]], Expr]
Element = tuple[str, Expr]  # buffer and flat index
Conditions = tuple[tuple[Expr, bool], ...]  # conditions, each with the value that it must have


@dataclass(frozen=True)
class Neighbours:
    """Wide accesses: (buffer, flat index of a lane) to the first lane's flat index; `guards` are those of loads."""

    loads: dict[tuple[str, Expr], Expr]
    stores: dict[tuple[str, Expr], Expr]
    guards: dict[tuple[str, Expr], Expr]


def uniform(cond: Expr, lane: Var, vector: int, multiples: Multiples) -> Expr | None:
    """`cond` without `lane`, if it is the same for all of 0 .. vector - 1; None if it may differ."""
    match cond:
        case Op("and" | "or" as how, (a, b)) if a.dtype is boolean:
            left, right = uniform(a, lane, vector, multiples), uniform(b, lane, vector, multiples)
            return None if left is None or right is None else op(how, left, right)
        case Op("lt" | "ge", (a, b)) if a.dtype is i64 and lane.name in names(cond):
            terms, _ = linear(a - b)
            # If the rest is a multiple of the vector, adding the lane does not change the sign.
            if terms.get(lane) == 1 and divides(a - b - lane, vector, multiples):
                return substitute(cond, {lane: const(0)})
            return None
    return cond if lane.name not in names(cond) else None


@dataclass(frozen=True)
class _Body:
    """Statements that run for `lane` = 0 .. vector - 1, and the names `bound` in them.

    `place` lowers the index of an element to a flat one, `value` lowers a condition, both to Kernel IR.
    """

    statements: tuple[Stmt, ...]
    scope: Scope
    lane: Var
    vector: int
    place: Place
    value: Callable[[Expr], Expr]
    bound: frozenset[str]

    def wide(self, buffer: str, index: tuple[Expr, ...]) -> tuple[Expr, Expr] | None:
        """The flat index of a lane's element and of the first lane's, if lanes access aligned neighbours; else None."""
        own = buffer in self.scope.registers or buffer in self.scope.local
        if own or buffer not in self.scope.buffers or any(names(i) & self.bound for i in index):
            return None
        flat = self.place(buffer, index)
        if access.stride(flat, self.lane) != 1:
            return None
        terms, rest = linear(flat)
        start = from_linear(({t: c for t, c in terms.items() if t is not self.lane}, rest))
        return (flat, start) if divides(start, self.vector, self.scope.multiples) else None

    def common(self, conditions: Conditions) -> Expr | None:
        """All conditions as one that is the same for all lanes; None if lanes may differ."""
        made: Expr = const(True, boolean)
        for cond, holds in conditions:
            same = None
            if not names(cond) & self.bound:
                same = uniform(self.value(cond), self.lane, self.vector, self.scope.multiples)
            if same is None:
                return None
            made = both(made, same if holds else op("not", same))
        return made


def find_wide_accesses(
    body: tuple[Stmt, ...], scope: Scope, lane: Var, vector: int, place: Place, value: Callable[[Expr], Expr]
) -> Neighbours:
    """The wide accesses of a body that runs for `lane` = 0 .. vector - 1.

    Only accesses executed by all lanes or by none count, to buffers that the body either reads or writes, each place
    once, or whose elements it replaces. `place` lowers the index of an element to a flat one, `value` lowers a
    condition, both to Kernel IR. The vector must be a power of two, as instructions are.
    """
    if vector & (vector - 1):
        return Neighbours({}, {}, {})
    nodes = [n for s in body for n in s.walk()]
    bound = {n.name for n in nodes if isinstance(n, Let | Init)} | {n.var for n in nodes if isinstance(n, access.LOOPS)}
    known = _Body(body, scope, lane, vector, place, value, frozenset(bound))
    written = Counter(s.buffer for s in within(body, Store))
    read = {n.buffer for n in nodes if isinstance(n, Load)}
    replaced = {b for b in read & written.keys() if replacing_store(body, b, b) is not None}
    stores = {
        (s.buffer, found[0]): found[1]
        for s in body
        if isinstance(s, Store) and s.op == "set" and s.buffer not in read - replaced and written[s.buffer] == 1
        and (found := known.wide(s.buffer, s.index))
    }  # fmt: skip
    loads, guards = _wide_loads(known, written.keys() - replaced)
    return Neighbours(loads, stores, guards)


def _wide_loads(body: _Body, written: Set[str]) -> tuple[dict[Element, Expr], dict[Element, Expr]]:
    """The wide loads of a body from buffers that it does not write, and the guards of some of them."""
    loads: dict[Element, Expr] = {}
    guards: dict[Element, Expr] = {}
    alone: set[Element] = set()  # also loaded under conditions that differ between lanes
    for load, conditions in _conditional_loads(body.statements):
        found = None if load.buffer in written else body.wide(load.buffer, load.index)
        if found is None:
            continue
        # Where a condition fails, the loaded index may not exist.
        apart = conditions and any(map(loads_in, load.index))
        (flat, start), guard = found, None if apart else body.common(conditions)
        element = load.buffer, flat
        if guard is None:
            alone.add(element)
            continue
        if not conditions:
            guards.pop(element, None)
        elif element not in loads:
            guards[element] = guard
        elif element in guards:
            guards[element] = op("or", guards[element], guard)
        loads[element] = start
    # Such a load can use a wide load that is unconditional, but not a guarded one.
    for element in alone & guards.keys():
        del loads[element], guards[element]
    return loads, guards


def _conditional_loads(body: tuple[Stmt, ...]) -> Iterator[tuple[Load, Conditions]]:
    """The loads of one execution of the body, with their conditions."""
    for s in body:
        match s:
            case Let(_, value) | Init(_, value) | Accum(_, _, value):
                yield from _loads(value, ())
            case Store(_, index, value, _):
                yield from _loads(value, ())
                for i in index:
                    yield from _loads(i, ())


def _loads(e: Expr, conditions: Conditions) -> Iterator[tuple[Load, Conditions]]:
    match e:
        case Const() | Var():
            return
        case Select(cond, then, other):
            yield from _loads(cond, conditions)
            yield from _loads(then, (*conditions, (cond, True)))
            yield from _loads(other, (*conditions, (cond, False)))
            return
        case Load(_, index):
            for i in index:
                yield from _loads(i, conditions)
            yield e, conditions
            return
    for c in e.children():
        if isinstance(c, Expr):
            yield from _loads(c, conditions)
