"""Algebra of index expressions: linear forms, ranges, and simplification of // and % with known ranges.

Ranges map variable names to inclusive (low, high) pairs; None is an unknown end. A `Below` also knows the symbolic
extent that its variable stays below. Symbolic sizes have ranges of their own.

Indices are assumed to be far from 2**63. Data may wrap around: its range has both ends or none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, overload

from compiler.ir.dtype import boolean, i64, integer_range
from compiler.ir.expr import Cast, Const, Expr, Load, N, Op, Select, Size, Var, canonical, const, op
from compiler.ir.linear import (
    Linear,
    exact_quotient,
    factors_of,
    from_linear,
    has_sizes,
    linear,
    monomial,
    multiples,
    multiplied,
    only_sizes,
    plus,
    times,
    variables_of,
)
from compiler.ir.node import Node
from compiler.ir.ranges import (
    UNKNOWN,
    WHOLE,
    Range,
    absolute,
    bits,
    divided_range,
    either,
    extreme,
    greater,
    is_vast,
    lesser,
    within,
)

Ranges = Mapping[str, Range]


class Below(tuple[int | None, int | None]):
    """The range 0 .. extent - 1, with the bounds that are known of the extent.

    Equal to another only if the extents are equal: two unknown ends are not the same.
    """

    extent: Expr

    def __new__(cls, extent: Expr, ranges: Ranges) -> Below:
        high = value_range(extent, ranges)[1]
        made = super().__new__(cls, (0, None if high is None else high - 1))
        made.extent = extent
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Below) and other.extent is self.extent

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.extent)


def extent_range(extent: Expr) -> Range:
    """The range of an axis of that extent."""
    if isinstance(extent, Const):
        return 0, int(extent.value) - 1
    return Below(extent, {}) if has_sizes(extent) else (0, None)


def range_below(extent: Expr, ranges: Ranges) -> Range:
    """The range of a loop variable below `extent`."""
    if has_sizes(extent):
        return Below(extent, ranges)
    high = value_range(extent, ranges)[1]
    return 0, None if high is None else high - 1


class _Known(dict[str, Range]):
    """Ranges of variables, with those found of expressions: each is asked for many times in nested quotients."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.found: dict[Expr, Range] = {}


def value_range(e: Expr, ranges: Ranges) -> Range:
    """Bounds of an integer expression in 64-bit arithmetic."""
    match e:
        case Const(value):
            return int(value), int(value)
        case Size(low=least, high=most):
            return least, most
        case Var(name):
            return ranges.get(name, (None, None))
    known = ranges if type(ranges) is _Known else _Known(ranges)
    found = known.found.get(e)
    if found is None:
        found = known.found[e] = _find_range(e, known)
    return found


def _find_range(e: Expr, ranges: _Known) -> Range:
    match e:
        case Op("add" | "sub" | "neg" | "mul"):
            return _linear_range(e, ranges)
        case Op("floordiv", (a, Const(int() as d))) if d > 0:
            low, high = value_range(a, ranges)
            return None if low is None else low // d, None if high is None else high // d
        case Op("mod", (_, Const(int() as d))) if d > 0:
            return 0, d - 1
        case Op("floordiv" | "mod" as how, (a, d)) if only_sizes(d) or (value_range(d, ranges)[0] or 0) > 0:
            return divided_range(how, value_range(a, ranges), value_range(d, ranges))
        case Op("min" | "max" as how, (a, b)):
            return extreme(how, _data_range(a, ranges), _data_range(b, ranges))
        case Op("and" | "or" | "xor" as how, (a, b)) if e.dtype is i64:
            return bits(how, value_range(a, ranges), value_range(b, ranges))
        case Op("shr", (a, Const(int() as by))) if 0 <= by < 64:
            low, high = value_range(a, ranges)
            return None if low is None else low >> by, None if high is None else high >> by
        case Op("require", (cond, a)):
            return _range_where(cond, a, ranges)
        case Op("where", (_, a, b)) | Select(_, a, b):
            return either(value_range(a, ranges), value_range(b, ranges))
        case Op("abs", (a,)):
            return absolute(_data_range(a, ranges))
        case Cast(arg) if e.dtype is i64 and arg.dtype.is_integer and arg.dtype.bits < 64:
            return integer_range(arg.dtype)
    return UNKNOWN


def _data_range(e: Expr, ranges: Ranges) -> Range:
    """The bounds of an expression; those of its type if it is data of unknown range."""
    found = value_range(e, ranges)
    return WHOLE if found == UNKNOWN and _has_data(e, ranges) else found


def _range_where(cond: Expr, e: Expr, ranges: Ranges) -> Range:
    """The range of `e` where `cond` holds, joined with 0."""
    low, high = value_range(e, ranges)
    for c in conjuncts(cond):
        match c:
            case Op("ge", (a, b)) if a is e:
                low = greater(low, value_range(b, ranges)[0])
            case Op("lt", (a, b)) if a is e and (most := value_range(b, ranges)[1]) is not None:
                high = lesser(high, most - 1)
    return None if low is None else min(low, 0), None if high is None else max(high, 0)


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """The operands of a conjunction, flattened."""
    match cond:
        case Op("and", (a, b)):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case _:
            yield cond


def _linear_range(e: Expr, ranges: Ranges) -> Range:
    form = linear(e)
    if e in form[0]:  # a product of variables
        return _product_range(e, ranges)
    return within(_form_range(form, ranges))


def _form_range(form: Linear, ranges: Ranges) -> Range:
    """Bounds of a linear form without wrap-around."""
    low, high = _sum_range(form, ranges)
    if any(_is_symbolic(atom, ranges) for atom in form[0]):
        most, least = _size_bound(form, ranges, 1), _size_bound(form, ranges, -1)
        high = lesser(high, None if most is None else _sum_range(most, ranges)[1])
        low = greater(low, None if least is None else _sum_range(least, ranges)[0])
    return low, high


def _product_range(e: Expr, ranges: Ranges) -> Range:
    """The range of a product of sizes and other factors, if no factor is negative."""
    low, high = 1, 1
    known, vast = True, False
    for x in factors_of(e):
        a, b = value_range(x, ranges)
        if a is None or a < 0:
            return UNKNOWN
        known, vast = known and b is not None, vast or is_vast((a, b))
        low, high = low * a, high * (b or 0)
    return UNKNOWN if vast and not known else within((low, high if known else None))


def _is_symbolic(atom: Expr, ranges: Ranges) -> bool:
    """Whether an atom contains a size, or a variable bounded by one."""
    if type(atom) is Var:
        return type(ranges.get(atom.name)) is Below
    return any(type(v) is Size or type(ranges.get(v.name)) is Below for v in variables_of(atom))


def _size_bound(form: Linear, ranges: Ranges, sign: int) -> Linear | None:
    """A sum of sizes that bounds the form from above (sign 1) or below (-1); None if none is found."""
    terms, rest = form
    out: Linear = {}, rest
    for atom, c in terms.items():
        if not _is_symbolic(atom, ranges):
            low, high = value_range(atom, ranges)
            end = high if c * sign > 0 else low
            if end is None or is_vast((end, end)):
                return None
            out = plus(out, ({}, end * c), 1)
            continue
        made: Linear = {}, 1
        for x in factors_of(atom):
            end_of = _upper_bound(x, ranges) if c * sign > 0 else _lower_bound(x, ranges)
            if end_of is None:
                return None
            made = multiplied(made, end_of)
        out = plus(out, times(made, c), 1)
    return out


def _upper_bound(x: Expr, ranges: Ranges) -> Linear | None:
    """An upper bound of a non-negative factor, as a sum of sizes."""
    match x:
        case Size():
            return {x: 1}, 0
        case Var(name) if isinstance(below := ranges.get(name), Below):
            return plus(linear(below.extent), ({}, 1), -1)
        case Op("floordiv", (a, d)) if _is_nonnegative(a, ranges):
            most = _size_bound(linear(a), ranges, 1)
            quotient = None if most is None else exact_quotient(plus(most, ({}, 1), 1), d)
            return None if quotient is None else plus(quotient, ({}, 1), -1)
        case Op("mod", (_, d)) if only_sizes(d):
            return plus(linear(d), ({}, 1), -1)
        case Op("require", (cond, a)):
            for c in conjuncts(cond):
                if isinstance(c, Op) and c.name == "lt" and c.args[0] is a and only_sizes(c.args[1]):
                    return plus(linear(c.args[1]), ({}, 1), -1)
    low, high = value_range(x, ranges)
    return None if low is None or low < 0 or high is None else ({}, high)


def _is_nonnegative(e: Expr, ranges: Ranges) -> bool:
    low, _ = value_range(e, ranges)
    return low is not None and low >= 0


def _lower_bound(x: Expr, ranges: Ranges) -> Linear | None:
    """A lower bound of a non-negative factor, as a sum of sizes."""
    if isinstance(x, Size):
        return {x: 1}, 0
    low, _ = value_range(x, ranges)
    return None if low is None or low < 0 else ({}, low)


def _divided_by_size(a: Expr, d: Expr, ranges: Ranges) -> tuple[Expr, Expr] | None:
    """Quotient and remainder of a division by a size, if simple: for `i * n + j` by n they are i and j; else None."""
    whole, part = multiples(linear(a), d)
    rest = from_linear(part)
    low, _ = value_range(rest, ranges)
    _, over = value_range(from_linear(plus(part, linear(d), -1)), ranges)
    if low is not None and low >= 0 and over is not None and over < 0:
        return from_linear(whole), rest
    return None


def _sum_range(form: Linear, ranges: Ranges) -> Range:
    terms, rest = form
    low: int | None = rest
    high: int | None = rest
    vast = False
    for atom, c in terms.items():
        a, b = value_range(atom, ranges)
        if c < 0:
            a, b = b, a
        low = None if low is None or a is None else low + c * a
        high = None if high is None or b is None else high + c * b
        vast = vast or is_vast((a, b))
    # Added to data near the limits of 64 bits, an index may be enough to wrap around.
    return UNKNOWN if vast and (low is None or high is None) else (low, high)


_MAX_RESULTS = 1 << 12  # results kept per set of ranges


@functools.lru_cache(maxsize=32)
def _simplified(ranges: frozenset[tuple[str, Range]]) -> tuple[dict[tuple[Expr, bool], Expr], _Known]:
    """Cache of simplified expressions: passes simplify the same indices repeatedly inside the same loops."""
    return {}, _Known(dict(ranges))


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


def _has_data(e: Expr, ranges: Ranges, others: Range = UNKNOWN) -> bool:
    """Whether it contains data: a tensor element, or a name of unknown range. Names without a range have `others`."""
    return any(isinstance(n, Load) or (isinstance(n, Var) and ranges.get(n.name, others) == UNKNOWN) for n in e.walk())


def _may_wrap(e: Expr, ranges: Ranges) -> bool:
    """Whether it contains data or exceeds 64 bits; expressions with sizes are indices if no term is vast."""
    if _has_data(e, ranges):
        return True
    if e.dtype is not i64 or value_range(e, ranges) != UNKNOWN:
        return False
    found = [UNKNOWN if type(v) is Size else ranges[v.name] for v in variables_of(e)]
    return any(map(is_vast, found)) or all(None not in r for r in found)


def _wraps(e: Expr, ranges: Ranges, index: bool) -> bool:
    """Whether a value may wrap around. In an index, data of unknown range may, until something around it bounds it."""
    if not index:
        return _may_wrap(e, ranges)
    return _has_data(e, ranges, (0, None)) and e.dtype is i64 and value_range(e, ranges) == UNKNOWN


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
    low, high = _form_range(plus(linear(a), linear(b), -1), ranges)
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
            quotients = _quotients(a, int(d.value), ranges, index) if isinstance(d, Const) else (op("floordiv", a, d),)
            for quotient in quotients:
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


def _quotients(a: Expr, d: int, ranges: Ranges, index: bool) -> Iterator[Expr]:
    """The ways to write `a // d`; one is `(x + e * y) // (d * e)` if `a` is `x // e + y`."""
    yield op("floordiv", a, d)
    terms, rest = linear(a)
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
        least, most = _form_range(low, ranges)
        if least is not None and least >= 0 and most is not None and most < g:
            return g, ({k: c // g for k, c in terms.items() if c % g == 0}, rest // g), low
    return None


def _divide(a: Expr, d: int, ranges: Ranges) -> Expr:
    whole, part = _split_multiples(a, d)
    low, high = _form_range(part, ranges)
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
