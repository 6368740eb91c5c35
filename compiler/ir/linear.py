"""Linear forms of index expressions: sums of integer multiples of atoms plus a constant; conversion and arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from compiler.ir.expr import Const, Expr, Op, Size, Var, const
from compiler.ir.ranges import LEAST

Linear = tuple[Mapping[Expr, int], int]  # coefficients of atoms, and the constant


def has_sizes(e: Expr) -> bool:
    """Whether a symbolic size occurs."""
    return type(e) is not Const and any(type(v) is Size for v in variables_of(e))


@functools.lru_cache(maxsize=1 << 14)
def linear(e: Expr) -> Linear:
    """`e` as a sum of integer multiples of atoms, plus a constant."""
    match e:
        case Const(value):
            return {}, int(value)
        case Op("add", (a, b)):
            return plus(linear(a), linear(b), 1)
        case Op("sub", (a, b)):
            return plus(linear(a), linear(b), -1)
        case Op("neg", (a,)):
            return times(linear(a), -1)
        case Op("mul", (a, b)):
            (ta, ca), (tb, cb) = linear(a), linear(b)
            if not ta:
                return times((tb, cb), ca)
            if not tb:
                return times((ta, ca), cb)
            if has_sizes(e):
                return multiplied((ta, ca), (tb, cb))
    return {e: 1}, 0


def multiplied(a: Linear, b: Linear) -> Linear:
    """The product of two forms, as a sum of monomials."""
    terms, rest = plus(times((a[0], 0), b[1]), times((b[0], 0), a[1]), 1)[0], a[1] * b[1]
    for x, m in a[0].items():
        for y, n in b[0].items():
            terms = plus((terms, 0), ({monomial(factors_of(x) + factors_of(y)): m * n}, 0), 1)[0]
    return terms, rest


def factors_of(atom: Expr) -> list[Expr]:
    match atom:
        case Op("mul", (a, b)):
            return factors_of(a) + factors_of(b)
    return [atom]


def monomial(factors: list[Expr]) -> Expr:
    """A product in its canonical order: sizes come last."""
    ordered = sorted(factors, key=lambda x: (isinstance(x, Size), repr(x)))
    out = ordered[0]
    for x in ordered[1:]:
        out = Op("mul", (out, x))
    return out


def plus(a: Linear, b: Linear, sign: int) -> Linear:
    terms = dict(a[0])
    for atom, c in b[0].items():
        terms[atom] = terms.get(atom, 0) + sign * c
        if not terms[atom]:
            del terms[atom]
    return terms, a[1] + sign * b[1]


def times(a: Linear, factor: int) -> Linear:
    return ({k: v * factor for k, v in a[0].items()} if factor else {}), a[1] * factor


def from_linear(form: Linear) -> Expr:
    """The expression of a linear form in 64 bits: terms by decreasing coefficient, added ones first."""
    terms, rest = {k: c for k, v in form[0].items() if (c := _wrap_around(v))}, _wrap_around(form[1])
    order = list(terms.items())
    if len(order) > 1:
        order.sort(key=lambda t: (t[1] < 0, -abs(t[1]), repr(t[0])))
    if not order or (rest > 0 and order[0][1] < 0):
        out: Expr = const(rest)
        rest = 0
    else:
        out = _term(*order.pop(0))
    for atom, c in order:
        out = out - _term(atom, -c) if _is_subtracted(c) else out + _term(atom, c)
    return out if rest == 0 else out - (-rest) if _is_subtracted(rest) else out + rest


def _wrap_around(c: int) -> int:
    return (c - LEAST) % 2**64 + LEAST


def _is_subtracted(c: int) -> bool:
    return LEAST < c < 0  # the least integer has no opposite


def _term(atom: Expr, c: int) -> Expr:
    return -(atom * -c) if _is_subtracted(c) else atom * c


@functools.lru_cache(maxsize=1 << 14)
def variables_of(atom: Expr) -> tuple[Var, ...]:
    return tuple(n for n in atom.walk() if isinstance(n, Var))


def only_sizes(e: Expr) -> bool:
    """Whether it consists of sums and products of sizes."""
    return has_sizes(e) and all(
        isinstance(n, Size | Const) or (isinstance(n, Op) and n.name in ("add", "sub", "mul"))
        for n in e.walk()
        if isinstance(n, Expr)
    )


def exact_quotient(form: Linear, d: Expr) -> Linear | None:
    """The quotient of a form by a monomial of sizes, if there is no remainder; else None."""
    whole, rest = multiples(form, d)
    return whole if not rest[0] and not rest[1] else None


def multiples(form: Linear, d: Expr) -> tuple[Linear, Linear]:
    """The multiples of `d` in a form, divided by it, and the rest."""
    terms, number = linear(d)
    if (len(terms), bool(number)) not in ((1, False), (0, True)):
        return ({}, 0), form
    by, c = next(iter(terms.items())) if terms else (None, number)
    whole: dict[Expr, int] = {}
    part: dict[Expr, int] = {}
    for atom, n in form[0].items():
        left = _remove_factors(factors_of(atom), factors_of(by) if by is not None else [])
        if left is None or n % c:
            part[atom] = n
        elif left:
            whole[monomial(left)] = n // c
        else:
            whole[const(1)] = n // c
    ones = whole.pop(const(1), 0)
    if by is None and form[1] % c == 0:
        return (whole, ones + form[1] // c), (part, 0)
    return (whole, ones), (part, form[1])


def _remove_factors(factors: list[Expr], removed: list[Expr]) -> list[Expr] | None:
    """The factors without those in `removed`; None if one of these is missing."""
    left = list(factors)
    for x in removed:
        if x not in left:
            return None
        left.remove(x)
    return left
