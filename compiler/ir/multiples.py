"""Divisibility of integer expressions, and powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from compiler.ir.expr import Const, Expr, Op, Var
from compiler.ir.linear import linear

Multiples = Mapping[str, int]  # a known divisor of each variable
NO_MULTIPLES: Multiples = MappingProxyType({})
WIDEST = 128


def power(n: int) -> int:
    """The least power of two that is at least `n`.

    >>> power(1), power(5), power(64)
    (1, 8, 64)
    """
    return 1 << max(0, n - 1).bit_length()


def ceildiv(a: int, b: int) -> int:
    """The quotient rounded up.

    >>> ceildiv(8, 4), ceildiv(9, 4)
    (2, 3)
    """
    return -(-a // b)


def is_constant_multiple(e: Expr, by: int) -> bool:
    """Whether `e` is a constant, and a multiple of `by`."""
    return isinstance(e, Const) and int(e.value) % by == 0


def divides(e: Expr, by: int, multiples: Multiples = NO_MULTIPLES) -> bool:
    """Whether `e` is certainly a multiple of `by`, a power of two, given known divisors of variables."""
    match e:
        case Var(name) if multiples.get(name, 1) % by == 0:
            return True
        case Op("min" | "max" | "xor" | "or", (a, b)):
            return divides(a, by, multiples) and divides(b, by, multiples)
        case Op("and", (a, b)):
            return divides(a, by, multiples) or divides(b, by, multiples)
    terms, rest = linear(e)
    if e in terms:
        return by == 1
    return rest % by == 0 and all(
        c % by == 0 or divides(t, by // _common_divisor(c, by), multiples) for t, c in terms.items()
    )


def _common_divisor(c: int, by: int) -> int:
    while c % by:
        by //= 2
    return max(by, 1)


def multiple(e: Expr, multiples: Multiples = NO_MULTIPLES) -> int:
    """The largest power of two, up to `WIDEST`, that certainly divides `e`."""
    by = WIDEST
    while by > 1 and not divides(e, by, multiples):
        by //= 2
    return by
