"""Accesses of neighbouring iterations to neighbouring places, so that one wide load or store serves them all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compiler.analysis import access
from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Const, Expr, Load, Op, Select, Var, const, names, op, substitute
from compiler.ir.linear import from_linear, linear
from compiler.ir.multiples import Multiples, divides
from compiler.ir.statement import Accum, Init, Let, Stmt, Store, within
from compiler.passes.gpu.scope import Scope

Place = Callable[[str, tuple[Expr, ...]], Expr]


@dataclass(frozen=True)
class Neighbours:
    """(buffer, flat index of a lane) to the flat index of the first lane; `guards` are what a load depends on."""

    loads: dict[tuple[str, Expr], Expr]
    stores: dict[tuple[str, Expr], Expr]
    guards: dict[tuple[str, Expr], Expr]


def uniform(cond: Expr, lane: Var, vector: int, multiples: Multiples) -> Expr | None:
    """`cond` without `lane`, where it holds for all of 0 .. vector - 1 or for none; None where it may differ."""
    match cond:
        case Op("and" | "or" as how, (a, b)) if a.dtype is boolean:
            left, right = uniform(a, lane, vector, multiples), uniform(b, lane, vector, multiples)
            return None if left is None or right is None else op(how, left, right)
        case Op("lt" | "ge", (a, b)) if a.dtype is i64 and lane.name in names(cond):
            terms, _ = linear(a - b)
            # Multiples of the vector, plus the lane, are below zero together.
            if terms.get(lane) == 1 and divides(a - b - lane, vector, multiples):
                return substitute(cond, {lane: const(0)})
            return None
    return cond if lane.name not in names(cond) else None


def neighbours(
    body: tuple[Stmt, ...], scope: Scope, lane: Var, vector: int, place: Place, value: Callable[[Expr], Expr]
) -> Neighbours:
    """The wide accesses of a body that runs for `lane` = 0 .. vector - 1.

    Only what is executed for all lanes or for none counts, of buffers that the body either reads or writes, each place
    once. `place` gives the flat index of an element, `value` that of a condition, as Kernel IR.
    """
    bound = {n.name for s in body for n in s.walk() if isinstance(n, Let | Init)}
    inner_loops = {s.var for s in body for s in s.walk() if isinstance(s, access.LOOPS)}
    written = [n.buffer for n in within(body, Store)]
    read = {n.buffer for s in body for n in s.walk() if isinstance(n, Load)}
    own = set(scope.registers or {}) | scope.local

    def wide(buffer: str, index: tuple[Expr, ...]) -> tuple[Expr, Expr] | None:
        if buffer in own or buffer not in scope.buffers:
            return None
        if any(names(i) & (bound | inner_loops) for i in index):
            return None
        flat = place(buffer, index)
        if access.stride(flat, lane) != 1:
            return None
        terms, rest = linear(flat)
        start = from_linear(({t: c for t, c in terms.items() if t is not lane}, rest))
        return (flat, start) if divides(start, vector, scope.multiples) else None

    loads: dict[tuple[str, Expr], Expr] = {}
    stores: dict[tuple[str, Expr], Expr] = {}
    guards: dict[tuple[str, Expr], Expr] = {}
    alone: set[tuple[str, Expr]] = set()  # also loaded where some lanes do and others do not
    for load, conditions in _executed(body):
        if load.buffer in written or not (found := wide(load.buffer, load.index)):
            continue
        key = load.buffer, found[0]
        needed = [] if any(names(c) & (bound | inner_loops) for c, _ in conditions) else [
            (uniform(value(c), lane, vector, scope.multiples), holds) for c, holds in conditions
        ]  # fmt: skip
        if len(needed) < len(conditions) or any(c is None for c, _ in needed):
            alone.add(key)
            continue
        if not conditions:
            guards.pop(key, None)
        elif key not in loads:
            guards[key] = _all([c if holds else op("not", c) for c, holds in needed if c is not None])
        elif key in guards:
            others = _all([c if holds else op("not", c) for c, holds in needed if c is not None])
            guards[key] = op("or", guards[key], others)
        loads[key] = found[1]
    # Such a load finds its element in what was loaded for all, but not where that was loaded under a condition.
    for key in alone & guards.keys():
        del loads[key], guards[key]
    for s in body:
        if isinstance(s, Store) and s.op == "set" and s.buffer not in read and written.count(s.buffer) == 1:
            found = wide(s.buffer, s.index)
            if found:
                stores[s.buffer, found[0]] = found[1]
    return Neighbours(loads, stores, guards)


Conditions = tuple[tuple[Expr, bool], ...]  # with what each must be


def _all(conditions: list[Expr]) -> Expr:
    return functools.reduce(lambda a, b: op("and", a, b), conditions)


def _executed(body: tuple[Stmt, ...]) -> Iterator[tuple[Load, Conditions]]:
    """Loads that an execution of the body makes under conditions, if any."""
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
