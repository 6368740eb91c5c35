"""Check what a loop requires for several iterations at once, with vectors, before these iterations run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass

from compiler.ir import kernel as k
from compiler.ir.dtype import boolean, i64, vector
from compiler.ir.expr import (
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Var,
    canonical,
    cast,
    const,
    is_short,
    loads,
    names,
    op,
    substitute,
)
from compiler.ir.linear import from_linear, linear
from compiler.ir.node import Node
from compiler.ir.value_ranges import value_range

Body = tuple[k.Stmt, ...]
Limits = dict[Expr, list[Expr]]  # by exclusive upper bound, the vectors of indices that must be at least 0 and below it


@dataclass(frozen=True)
class ByPieces:
    """Splits loops into pieces that are each checked at once.

    `lasts` tells whether an expression keeps its value while its names are in scope; `width` is in bytes. A piece is
    `scalars` iterations of a scalar loop, whose inner loops have at most `within` iterations, or as many iterations of
    a loop over vectors as ask for `vectors` vectors; 0 disables a kind of piece. `by_lane` says that a gather loads
    each lane by itself.
    """

    lasts: Callable[[Expr], bool]
    fresh: Callable[[str], str]
    width: int
    by_lane: bool
    scalars: int
    within: int
    vectors: int

    def body(self, body: Body) -> Body:
        """Split the loops of a body, in which requirements are declared names; here into pieces of 32, by 16 lanes:

            for j in range(0, 1000):
                checked: i32 = require((x1[j] >= 0) & (x1[j] < 9), x1[j])
                y[checked] += x[j]
        becomes

            for j_piece in range(0, 992, 32):
                asked: i32x16 = x1[j_piece, i32x16]
                asked_1: i32x16 = x1[j_piece + 16, i32x16]
                valid: bool = across(all, (asked >= 0) & (asked < 9) & ((asked_1 >= 0) & (asked_1 < 9)))
                if require(valid, valid):
                    for j in range(j_piece, j_piece + 32, 1, unroll):
                        checked: i32 = x1[j]
                        y[checked] += x[j]
            for j in range(992, 1000):
                checked: i32 = require((x1[j] >= 0) & (x1[j] < 9), x1[j])
                y[checked] += x[j]
        """
        return tuple(new for s in body for new in self.statement(s))

    def statement(self, s: k.Stmt) -> Body:
        match s:
            case k.If(_, then, orelse):
                return (s.replace(body=self.body(then), orelse=self.body(orelse)),)
            case k.For(body=inner, step=1, mark="" | "parallel") if all(map(self.is_short, inner)):
                return self.split_into_pieces(s) or (s,)
            case k.For(body=inner, mark="") if all(isinstance(t, k.Declare | k.Assign | k.Store) for t in inner):
                return self.unroll_vector_loop(s) or (s,)
            case k.For(body=inner):
                return (s.replace(body=self.body(inner)),)
        return (s,)

    def is_short(self, s: k.Stmt) -> bool:
        """Whether a statement takes no longer than a check does."""
        match s:
            case k.For(_, Const(start), Const(stop), step, body):
                return stop - start <= self.within * step and all(isinstance(t, k.Declare | k.Store) for t in body)
        return isinstance(s, k.Declare | k.Assign | k.Store)

    # ---- loops of scalars

    def split_into_pieces(self, f: k.For) -> Body | None:
        """Return the loop in pieces and its remainder; None if it is too short or nothing can be checked ahead."""
        whole = _end_of_whole_steps(f, self.scalars)
        required, rest = self.split_requirements(f) if whole is not None else ({}, ())
        if whole is None or not required:
            return None
        piece = Var(self.fresh(f"{f.var}_piece"), i64)
        asked: list[k.Stmt] = []
        limits: Limits = {}
        for index, limit in required:
            widest = max(n.dtype.bytes for n in index.walk() if isinstance(n, Expr))
            lanes = min(self.width // widest, self.scalars)
            for first in range(0, self.scalars, lanes):
                wide = _widen(index, f.var, op("add", piece, const(first)) if first else piece, lanes)
                loaded = {} if isinstance(wide, Load) else {n: Var(self.fresh("asked"), n.dtype) for n in loads(wide)}
                name = Var(self.fresh("asked"), wide.dtype)
                asked += [k.Declare(known.name, load) for load, known in loaded.items()]
                asked.append(k.Declare(name.name, substitute(wide, loaded)))
                limits.setdefault(k.Broadcast(limit, lanes), []).append(name)
        iterations = f.replace(start=piece, stop=op("add", piece, const(self.scalars)), body=rest, mark="unroll")
        made = k.For(
            piece.name, f.start, whole, self.scalars, (*asked, *self.guard_by_limits(limits, (iterations,))), f.mark
        )
        return (made, *_remainder(f.replace(mark=""), whole))

    def split_requirements(self, f: k.For) -> tuple[dict[tuple[Expr, Expr], None], Body]:
        """Return (value, limit) of each requirement that vectors can check, and the body without these requirements."""
        values: dict[Expr, Expr] = {}
        required: dict[tuple[Expr, Expr], None] = {}
        rest: list[k.Stmt] = []
        long: set[str] = set()  # names of values that would be written out at length
        lengths: dict[Node, int] = {}
        for s in f.body:
            if isinstance(s, k.Declare):
                value = substitute(s.value, values) if values else s.value
                asks = _match_bounds_check(value)
                if (long and long & names(value)) or not is_short([value], lengths):
                    long.add(s.name)
                    rest.append(s)
                    continue
                if asks is not None and f.var not in names(asks[1]) and all(self.can_widen(e, f.var) for e in asks):
                    required[asks] = None
                    value, s = asks[0], s.replace(value=_without_requirement(s.value))
                values[Var(s.name, s.value.dtype)] = value
            rest.append(s)
        return required, tuple(rest)

    def can_widen(self, e: Expr, var: str) -> bool:
        """Whether an expression can be evaluated for several iterations at once: only the loop variable changes it."""
        match e:
            case Const() | Var():
                return e.dtype.lanes == 1 and self.lasts(e)
            case Load(_, (index,)):
                form, _ = linear(index)
                others = [a for a in form if a is not Var(var, i64)]
                plain = not any(var in names(a) or loads(a) for a in others)
                return self.lasts(e) and form.get(Var(var, i64), 0) in (0, 1) and plain
            case Cast(arg):
                return self.can_widen(arg, var)
            case Op(name, args):
                return name != "require" and all(self.can_widen(a, var) for a in args)
        return False

    # ---- loops over vectors

    def unroll_vector_loop(self, f: k.For) -> Body | None:
        """Unroll the loop so that several vectors are checked before any is used; None if that is not possible."""
        asking = {
            n: asks[1]
            for n, s in enumerate(f.body)
            if isinstance(s, k.Declare) and (asks := _match_bounds_check(s.value)) is not None
        }
        if not asking or not self.vectors or (self.by_lane and _used_by_lane(f.body)):
            return None
        copies = max(1, self.vectors // max(Counter(asking.values()).values()))
        whole = _end_of_whole_steps(f, copies * f.step) if copies > 1 else f.stop
        needed = _needed(f.body, asking)
        first = tuple(s for n, s in enumerate(f.body) if n in needed and isinstance(s, k.Declare))
        then = tuple(s for n, s in enumerate(f.body) if n not in needed)
        if whole is None or not all(self.lasts(s.value) for s in first) or _has_unchecked_address(first):
            return None
        before: list[k.Stmt] = []
        after: list[k.Stmt] = []
        limits: Limits = {}
        for n in range(copies):
            table: dict[Expr, Expr] = {Var(f.var, i64): op("add", Var(f.var, i64), const(n * f.step))} if n else {}
            before += [self.copy_statement(s, table, limits) for s in first]
            after += [self.copy_statement(s, table, limits) for s in then]
        made = f.replace(stop=whole, step=copies * f.step, body=(*before, *self.guard_by_limits(limits, tuple(after))))
        return (made, *_remainder(f, whole))

    def copy_statement(self, s: k.Stmt, table: dict[Expr, Expr], limits: Limits) -> k.Stmt:
        """Copy a statement under fresh names, added to `table`, with its requirement moved into `limits`."""
        new = s.map(lambda e: substitute(e, table)) if table else s
        if isinstance(s, k.Declare) and isinstance(new, k.Declare):
            if (asks := _match_bounds_check(new.value)) is not None:
                limits.setdefault(asks[1], []).append(asks[0])
                new = new.replace(value=asks[0])
            if table:
                new = new.replace(name=self.fresh(s.name))
            table[Var(s.name, s.value.dtype)] = Var(new.name, new.value.dtype)
        return new

    def guard_by_limits(self, limits: Limits, then: Body) -> Body:
        """Return statements that run `then` if all indices are within their limits, and otherwise fail."""
        conditions: list[Expr] = []
        for limit, asked in limits.items():
            zero = k.Broadcast(Const(0, limit.dtype.replace(lanes=1)), limit.dtype.lanes)
            parts = [op("and", op("ge", a, zero), op("lt", a, limit)) for a in asked]
            conditions.append(k.Across("and", functools.reduce(lambda a, b: op("and", a, b), parts)))
        valid = Var(self.fresh("valid"), boolean)
        holds = functools.reduce(lambda a, b: op("and", a, b), conditions)
        return (k.Declare(valid.name, holds), k.If(op("require", valid, valid), then))


def _end_of_whole_steps(f: k.For, step: int) -> Expr | None:
    """The end of the last whole step of a loop; None if there may be none."""
    extent = canonical(f.stop - f.start)
    low, high = value_range(extent, {})
    if not step or low is None or low < 0 or (high is not None and high < step):
        return None
    whole: Expr = canonical(f.start + extent // step * step)
    return whole


def _remainder(f: k.For, start: Expr) -> Body:
    """The remainder of the loop from `start` on, if any."""
    return () if start is f.stop else (f.replace(start=start),)


def _match_bounds_check(e: Expr) -> tuple[Expr, Expr] | None:
    """Return (index, limit) for a requirement that 0 <= index < limit; None for others."""
    match e:
        case Op("require", (Op("and", (Op("ge", (a, zero)), Op("lt", (b, limit)))), index)) if a is b is index:
            scalar = zero.arg if isinstance(zero, k.Broadcast) else zero
            alike = limit.dtype.lanes == 1 or isinstance(limit, Const | k.Broadcast)
            return (index, limit) if alike and scalar is Const(0, scalar.dtype) else None
    return None


def _without_requirement(e: Expr) -> Expr:
    """The value of an expression without its requirement."""
    return e.args[1] if isinstance(e, Op) else e


def _used_by_lane(body: Body) -> bool:
    """Whether a gather takes a checked index directly from memory, lane by lane.

    The check of the whole vector would then load the indices a second time.
    """
    known = {s.name: s.value for s in body if isinstance(s, k.Declare)}
    asked = {name: _without_requirement(e) for name, e in known.items() if _match_bounds_check(e) is not None}
    loaded = {n for n, e in asked.items() if isinstance(known.get(e.name) if isinstance(e, Var) else e, Load)}
    indices = {n.index for s in body for n in s.walk() if isinstance(n, k.Gather)}
    return any(isinstance(part, Var) and part.name in loaded for index in indices for part in _summands(index))


def _has_unchecked_address(body: Body) -> bool:
    """Whether a load's address depends on a value that is still to be checked."""
    asked: set[str] = set()
    for s in body:
        if any(asked & names(n.index if isinstance(n, k.Gather) else n.index[0]) for n in s.walk()
               if isinstance(n, Load | k.Gather)):  # fmt: skip
            return True
        if isinstance(s, k.Declare) and (asked & names(s.value) or _match_bounds_check(s.value) is not None):
            asked.add(s.name)
    return False


def _needed(body: Body, asking: Container[int]) -> set[int]:
    """The positions in a body of the declarations that ask, and of those that they need."""
    positions: set[int] = set()
    read: set[str] = set()
    for n, s in reversed([*enumerate(body)]):
        if isinstance(s, k.Declare) and (n in asking or s.name in read):
            positions.add(n)
            read |= names(s.value)
    return positions


def _summands(e: Expr) -> tuple[Expr, ...]:
    return (*_summands(e.args[0]), *_summands(e.args[1])) if isinstance(e, Op) and e.name == "add" else (e,)


def _widen(e: Expr, var: str, first: Expr, lanes: int) -> Expr:
    """The vector of an expression's values for `lanes` iterations from `first` on."""
    if var not in names(e):
        return k.Broadcast(e, lanes)
    match e:
        case Var():
            return k.Ramp(first, 1, lanes)
        case Load(buffer, (index,), dtype):
            at = from_linear(linear(substitute(index, {Var(var, i64): first})))
            return Load(buffer, (at,), vector(dtype, lanes))
        case Cast(arg, dtype):
            return cast(_widen(arg, var, first, lanes), vector(dtype, lanes))
        case Op(name, args):
            return op(name, *(_widen(a, var, first, lanes) for a in args))
    raise TypeError(f"{type(e).__name__} has no vector")
