"""Algebra of index expressions: simplification of sums, comparisons, and // and % with known ranges."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, overload

from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Const, Expr, Load, N, Op, Size, Var, canonical, const, op
from compiler.ir.linear import (
    Linear,
    factors_of,
    from_linear,
    linear,
    monomial,
    multiples,
    only_sizes,
    plus,
    times,
    variables_of,
)
from compiler.ir.node import Node
from compiler.ir.ranges import UNKNOWN, Range, is_vast
from compiler.ir.value_ranges import KnownRanges, Ranges, form_range, has_data, value_range

_MAX_RESULTS = 1 << 12  # results kept per set of ranges


@functools.lru_cache(maxsize=32)
def _simplified(ranges: frozenset[tuple[str, Range]]) -> tuple[dict[tuple[Expr, bool], Expr], KnownRanges]:
    """Cache of simplified expressions: passes simplify the same indices repeatedly inside the same loops."""
    return {}, KnownRanges(dict(ranges))


@overload
def simplify(node: Expr, ranges: Ranges, index: bool = False) -> Expr: ...
@overload
def simplify(node: tuple[N, ...], ranges: Ranges, index: bool = False) -> tuple[N, ...]: ...
def simplify(node: Any, ranges: Ranges, index: bool = False) -> Any:
    """Every integer and bool part of `node` in simplest form, given the ranges of its variables.

    Indices are far from 2**63, so `x + 1 > x` holds for them. Data may wrap around, so it is left alone unless `node`
    itself is an `index`.
    """
    known, ranges = _simplified(frozenset(ranges.items()))
    if len(known) > _MAX_RESULTS:
        known.clear()
        ranges.found.clear()

    def go(n: Node, index: bool) -> Node:
        if not isinstance(n, Expr):
            return n.map(lambda child: go(child, index))
        made = known.get((n, index))
        if made is None:
            within = index or isinstance(n, Load)
            new = n if type(n) in (Const, Var) else canonical(n.map(lambda child: go(child, within)))
            made = known[n, index] = _simplify(new, ranges, index)
        return made

    return tuple(go(n, index) for n in node) if type(node) is tuple else go(node, index)


def _may_wrap(e: Expr, ranges: Ranges) -> bool:
    """Whether it contains data or exceeds 64 bits; expressions with sizes are indices if no term is vast."""
    if has_data(e, ranges):
        return True
    if e.dtype is not i64 or value_range(e, ranges) != UNKNOWN:
        return False
    found = [UNKNOWN if type(v) is Size else ranges[v.name] for v in variables_of(e)]
    return any(map(is_vast, found)) or all(None not in r for r in found)


def _wraps(e: Expr, ranges: Ranges, index: bool) -> bool:
    """Whether a value may wrap around. In an index, data of unknown range may, until something around it bounds it."""
    if not index:
        return _may_wrap(e, ranges)
    return has_data(e, ranges, (0, None)) and e.dtype is i64 and value_range(e, ranges) == UNKNOWN


def _simplify(e: Expr, ranges: Ranges, index: bool) -> Expr:
    match e:
        case Op("add" | "sub" | "neg" | "mul") if e.dtype is i64:
            return from_linear(_fold_digits(linear(e), ranges, index))  # also true modulo 2**64
        case Op("floordiv" | "mod" | "min" | "max" | "lt" | "le" | "gt" | "ge" | "eq" | "ne") if any(
            _wraps(x, ranges, index) for x in e.args
        ):
            return e
        case Op("floordiv", (a, Const(int() as d))) if e.dtype is i64 and d > 0:
            return _divide(a, d, ranges)
        case Op("mod", (a, Const(int() as d))) if e.dtype is i64 and d > 0:
            return _modulo(a, d, ranges)
        case Op("floordiv" | "mod" as how, (a, d)) if e.dtype is i64 and only_sizes(d):
            parts = _divided_by_size(a, d, ranges)
            return e if parts is None else parts[how == "mod"]
        case Op("min" | "max" as how, (a, b)) if e.dtype is i64:
            (la, ha), (lb, hb) = value_range(a, ranges), value_range(b, ranges)
            if how == "max":
                a, b = b, a  # the side that is never the smaller is the result
            if ha is not None and lb is not None and ha <= lb:
                return a
            if hb is not None and la is not None and hb <= la:
                return b
        case Op("abs", (a,)) if a.dtype is i64:
            low, high = value_range(a, ranges)
            if low is not None and low >= 0:
                return a
            if high is not None and high <= 0:
                return from_linear(times(linear(a), -1))
        case Op("lt" | "le" | "gt" | "ge" | "eq" | "ne" as how, (a, b)) if a.dtype is i64:
            return _compare(e, how, a, b, ranges)
        case Op("and", (a, b)) if e.dtype is boolean:
            return _and_or(e, a, b, True)
        case Op("or", (a, b)) if e.dtype is boolean:
            return _and_or(e, a, b, False)
        case Op("where", (Const(c), a, b)):
            return a if c else b
    return e


def _and_or(e: Expr, a: Expr, b: Expr, neutral: bool) -> Expr:
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return y if x.value is neutral else x
    return a if a is b else e


def _compare(e: Expr, how: str, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    low, high = form_range(plus(linear(a), linear(b), -1), ranges)
    below, above = high is not None and high < 0, low is not None and low > 0
    not_above, not_below = high is not None and high <= 0, low is not None and low >= 0
    always = {"lt": below, "le": not_above, "gt": above, "ge": not_below, "eq": low == high == 0, "ne": below or above}
    never = {"lt": not_below, "le": above, "gt": not_above, "ge": below, "eq": always["ne"], "ne": always["eq"]}
    return Const(True, boolean) if always[how] else Const(False, boolean) if never[how] else e


def _fold_digits(form: Linear, ranges: Ranges, index: bool) -> Linear:
    """Fold `(a // d) * d * c + (a % d) * c` to `a * c`; repeatedly, because a sum may hold a whole chain of digits."""
    terms, rest = form
    for atom, c in terms.items():
        for a, d, others in _remainders(atom):
            for quotient in _quotients(a, d, ranges, index):
                scaled = times(linear(quotient * d * others), c)
                if all(terms.get(k) == v for k, v in scaled[0].items()):
                    left = {k: v for k, v in terms.items() if k is not atom and k not in scaled[0]}
                    return _fold_digits(plus((left, rest), times(linear(a * others), c), 1), ranges, index)
    return form


def _remainders(atom: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
    """The ways to write a term as `(a % d) * others`."""
    factors = factors_of(atom)
    for n, x in enumerate(factors):
        match x:
            case Op("mod", (a, d)) if (isinstance(d, Const) and d.value > 0) or only_sizes(d):
                others = factors[:n] + factors[n + 1 :]
                yield a, d, monomial(others) if others else const(1)


def _quotients(a: Expr, by: Expr, ranges: Ranges, index: bool) -> Iterator[Expr]:
    """The ways to write `a // by`; for a number, one is `(x + e * y) // (by * e)` if `a` is `x // e + y`."""
    yield op("floordiv", a, by)
    if not isinstance(by, Const):
        return
    d, (terms, rest) = int(by.value), linear(a)
    for atom, c in terms.items():
        match atom:
            case Op("floordiv", (x, Const(int() as e))) if c == 1 and e > 0:
                others = {k: v * e for k, v in terms.items() if k is not atom}, rest * e
                whole = from_linear(plus(linear(x), others, 1))
                if whole is x:
                    yield op("floordiv", x, d * e)
                if not _wraps(whole, ranges, index):
                    yield _divide(whole, d * e, ranges)


def _split_multiples(a: Expr, d: int) -> tuple[Linear, Linear]:
    """The multiples of `d` in a linear form, and the rest, to which the constant's remainder belongs."""
    terms, rest = linear(a)
    whole = {k: v // d for k, v in terms.items() if v % d == 0}
    part = {k: v for k, v in terms.items() if v % d}
    return (whole, rest // d), (part, rest % d)


def _digits(form: Linear, d: int, ranges: Ranges) -> tuple[int, Linear, Linear] | None:
    """`form` as g * high + low with g > 1 dividing `d` and low within 0 .. g - 1; None if there is no such g."""
    terms, rest = form
    for g in sorted({math.gcd(c, d) for c in terms.values()} - {1}, reverse=True):
        low = {k: c for k, c in terms.items() if c % g}, rest % g
        least, most = form_range(low, ranges)
        if least is not None and least >= 0 and most is not None and most < g:
            return g, ({k: c // g for k, c in terms.items() if c % g == 0}, rest // g), low
    return None


def _divided_by_size(a: Expr, d: Expr, ranges: Ranges) -> tuple[Expr, Expr] | None:
    """Quotient and remainder of a division by a size, if simple: for `i * n + j` by n they are i and j; else None."""
    whole, part = multiples(linear(a), d)
    rest = from_linear(part)
    low, _ = value_range(rest, ranges)
    _, over = value_range(from_linear(plus(part, linear(d), -1)), ranges)
    if low is not None and low >= 0 and over is not None and over < 0:
        return from_linear(whole), rest
    return None


def _divide(a: Expr, d: int, ranges: Ranges) -> Expr:
    whole, part = _split_multiples(a, d)
    low, high = form_range(part, ranges)
    if low is not None and high is not None and low // d == high // d:
        return from_linear((whole[0], whole[1] + low // d))
    if whole[0] or whole[1]:
        return from_linear(plus(whole, linear(_divide(from_linear(part), d, ranges)), 1))
    digits = _digits(part, d, ranges)
    if digits is not None:
        g, upper, _ = digits
        return _divide(from_linear(upper), d // g, ranges)
    match a:
        case Op("floordiv", (x, Const(int() as d2))) if d2 > 0:
            return _divide(x, d * d2, ranges)
        case Op("mod", (x, Const(int() as m))) if m > 0 and m % d == 0:  # a higher digit of x
            return _modulo(_divide(x, d, ranges), m // d, ranges)
    return op("floordiv", a, d)


def _modulo(a: Expr, d: int, ranges: Ranges) -> Expr:
    _, part = _split_multiples(a, d)
    rest = from_linear(part)
    low, high = value_range(rest, ranges)
    if low is not None and high is not None and low // d == high // d:
        return from_linear((part[0], part[1] - low // d * d))
    digits = _digits(part, d, ranges)
    if digits is not None:
        g, upper, lower = digits
        return from_linear(plus(times(linear(_modulo(from_linear(upper), d // g, ranges)), g), lower, 1))
    match rest:
        case Op("mod", (x, Const(int() as m))) if m > 0 and m % d == 0:
            return _modulo(x, d, ranges)
    return op("mod", rest, d)
