"""Iterations at which a condition on a loop variable, or the sign under an `abs`, changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Op, Select, Var, dim, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.node import Node
from compiler.ir.ranges import Range
from compiler.ir.statement import Let, Stmt, Store

MOST_GROWTH = 4


def breakpoints(
    body: tuple[Stmt, ...], var: Var, extent: int, ranges: dict[str, Range], most: int, edges: bool = False
) -> tuple[int, ...]:
    """Where to cut `0 <= var < extent`, ascending, so that no condition on `var` alone changes within a part.

    With `edges`, guards of loads also cut where they start or stop holding for all values of the other variables. Each
    part is simplified and searched again, for nested conditions. Empty if nothing changes or if there are more than
    `most` cuts.

    >>> from compiler.ir.dtype import f32
    >>> from compiler.ir.expr import Load, op
    >>> from compiler.ir.statement import Store
    >>> j = Var("j")
    >>> rolled = Load("x", (op("where", op("lt", j, dim(3)), j + 253, j - 3),), f32)
    >>> breakpoints((Store("y", (j,), rolled),), j, 256, {}, 8)
    (3,)
    """
    pending = [(0, extent)]
    cuts: list[int] = []
    while pending:
        start, end = pending.pop()
        known = ranges | {var.name: (0, end - start - 1)} if edges else None
        found = _changes(part_of(body, var, start, end, ranges), var, known)
        cut = next((n for n in found if 0 < n < end - start), None)
        if cut is None:
            continue
        cuts.append(start + cut)
        if len(cuts) > most:
            return ()
        pending += [(start, start + cut), (start + cut, end)]
    return tuple(sorted(cuts))


def written_out(body: tuple[Stmt, ...]) -> Store | None:
    """The only store of the body with all named values inlined; None if the body does more than name values, or if the
    inlined text is more than `MOST_GROWTH` times as large: inlining nested values can grow exponentially."""
    inlined: dict[Expr, Expr] = {}
    sizes: dict[Node, int] = {}
    for s in body:
        match s:
            case Let(name, value):
                inlined[Var(name, value.dtype)] = substitute(value, inlined)
            case Store() if s is body[-1]:
                (stored,) = substitute((s,), inlined)
                return stored if _size(stored, sizes) <= MOST_GROWTH * sum(_size(b, sizes) for b in body) else None
            case _:
                return None
    return None


def _size(node: Node, known: dict[Node, int]) -> int:
    """The number of nodes in the text of this node."""
    if node not in known:
        known[node] = 1 + sum(_size(child, known) for child in node.below)
    return known[node]


def part_of(
    body: tuple[Stmt, ...], var: Var, start: int, end: int, ranges: dict[str, Range], name: str = ""
) -> tuple[Stmt, ...]:
    """The simplified body of the iterations from `start` to before `end`, counted from 0 by `name` (default: `var`)."""
    own = Var(name or var.name)
    return simplify(substitute(body, {var: own + start}), ranges | {own.name: (0, end - start - 1)})


def _changes(body: tuple[Stmt, ...], var: Var, known: dict[str, Range] | None) -> Iterator[int]:
    """Iterations at which a condition changes; with `known` ranges, also those where a guard's certainty does."""
    for s in body:
        for n in s.walk():
            match n:
                case Select(cond) | Op("where", (cond, _, _)):
                    yield from (at for c in cond.walk() for at in _change_points(c, var))
                    if known is not None and isinstance(n, Select):
                        yield from (at for c in cond.walk() for at in _certainty_changes(c, var, known))
                case Op("abs", (arg,)) if arg.dtype is i64:
                    yield from _change_points(Op("lt", (arg, dim(0))), var)
                case Op("max" | "min", (a, b)) if n.dtype is i64:
                    yield from _change_points(Op("lt", (a, b)), var)


def _certainty_changes(cond: Node, var: Var, known: dict[str, Range]) -> Iterator[int]:
    """The first iteration at which it changes whether a comparison certainly holds or certainly fails, if the
    comparison is monotonic in `var`."""
    match cond:
        case Op("lt" | "le" | "gt" | "ge", (a, b)) if a.dtype is i64 and _is_monotonic(a - b, var):
            last = known[var.name][1] or 0

            def simplified_at(n: int) -> Expr:
                return simplify(cond, known | {var.name: (n, n)})

            def has_changed(n: int) -> bool:
                here = simplified_at(n)
                return (here if isinstance(here, Const) else None) is not first

            begin = simplified_at(0)
            first = begin if isinstance(begin, Const) else None
            if has_changed(last):
                yield bisect_left(range(last + 1), True, key=has_changed)


def _is_monotonic(form: Expr, var: Var) -> bool:
    """Whether a form is monotonic in `var`: all its multiples of `var` and of quotients of `var` have the same sign."""
    signs = set()
    for atom, times in linear(form)[0].items():
        if var not in set(atom.walk()):
            continue
        match atom:
            case Var():
                signs.add(times > 0)
            case Op("floordiv", (a, Const(int() as by))) if by > 0 and linear(a)[0].get(var, 0) > 0:
                signs.add(times > 0)
                if any(var in set(x.walk()) for x in linear(a)[0] if x is not var):
                    return False
            case _:
                return False
    return len(signs) == 1


def _change_points(cond: Node, var: Var) -> Iterator[int]:
    """The first iteration at which a comparison of a multiple of `var` with a number changes."""
    match cond:
        case Op("lt" | "le" | "gt" | "ge" as how, (a, b)) if a.dtype is i64:
            # In the form `rest + times * var < 0`.
            form = a - b if how in ("lt", "le") else b - a
            terms, rest = linear(form - 1 if how in ("le", "ge") else form)
            if terms.keys() == {var}:
                times = terms[var]
                yield -(rest // times) if times > 0 else rest // -times + 1
        case Op("eq", (a, b)) if a.dtype is i64:
            terms, rest = linear(a - b)
            if terms.keys() == {var} and rest % terms[var] == 0:
                at = -rest // terms[var]
                yield from (at, at + 1)
