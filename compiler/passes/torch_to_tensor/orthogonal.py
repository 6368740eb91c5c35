"""Orthogonal polynomials whose degrees are tensor elements: Chebyshev polynomials by doubling, others by recurrence.

A degree that is known at compile time is a literal and costs only the steps that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from compiler.ir.dtype import f64, i64
from compiler.ir.expr import Const, Expr, cast, const, op
from compiler.passes.torch_to_tensor.formula import lit, where

E = Expr
Let = Callable[[E], E]
Formula = Callable[[Let, E, E], E]
BITS = 24  # degrees are capped at 2^24, beyond which f32 does not have every integer
MOST = 32  # the highest degree computed by recurrence; higher ones fail at run time


def _either(cond: E, a: E, b: E) -> E:
    """A select; just one of the two if the condition is a literal."""
    return (a if cond.value else b) if isinstance(cond, Const) else where(cond, a, b)


def _by_doubling(at_one: Callable[[E], E], odd: Callable[[E], E]) -> Formula:
    """A Chebyshev polynomial P by the bits of its degree, from the highest down.

    With T those of the first kind, P(2k) = 2 T(k) P(k) - 1 and P(2k + 1) = 2 T(k + 1) P(k) - `odd`. The state is T(k),
    T(k + 1) and P(k) for the degree k of the bits so far. Errors grow at most with the square of the degree.
    """

    def formula(let: Let, x: E, n: E) -> E:
        inner, one = let(op("max", op("min", x, 1e300), -1e300)), lit(1, x)  # larger values would give inf - inf
        low, high, found = one, inner, one
        rest = let(op("min", n, lit(1 << BITS, n)))
        for bit in reversed(range(int(rest.value).bit_length() if isinstance(rest, Const) else BITS + 1)):
            whole = lit(1 << bit, n)
            is_set, begun, beyond = op("ge", rest, whole), op("ge", n, whole), op("ge", n, lit(2 << bit, n))
            twice = let(_either(is_set, high, low) * 2.0)
            found = let(_either(begun, twice * found - _either(is_set, odd(inner), one), one))
            even, uneven = _either(is_set, inner, one), _either(is_set, one, inner)
            low, high = (
                let(_either(beyond, twice * low - even, even)),
                let(_either(begun, twice * high - uneven, uneven)),
            )
            rest = let(_either(is_set, rest - whole, rest))
        return where(op("isnan", x), x, where(op("eq", x, 1.0), at_one(cast(n, f64)), found))

    return formula


def _by_recurrence(first: Callable[[E], E], step: Callable[[E, E, E, float], E]) -> Formula:
    """From 1 and `first`, `step(x, last, before, k)` gives the polynomial of degree k + 1."""

    def formula(let: Let, x: E, n: E) -> E:
        n = op("require", op("le", n, lit(MOST, n)), n)
        before, last = lit(1, x), let(first(x))
        found = last
        for k in range(1, min(MOST, int(n.value)) if isinstance(n, Const) else MOST):
            before, last = last, let(step(x, last, before, float(k)))
            found = _either(op("gt", n, lit(k, n)), last, found)
        return found

    return formula


def _shifted(how: Formula) -> Formula:
    return lambda let, x, n: how(let, let(x * 2.0 - 1.0), n)


def _of_degree(how: Formula) -> Formula:
    """Degrees are truncated to integers; a polynomial of negative degree is 0."""

    def formula(let: Let, x: E, n: E) -> E:
        if isinstance(n, Const) and math.isfinite(n.value):
            degree: E = const(max(int(n.value), 0), i64)
        else:
            degree = let(op("max", op("trunc", n), 0.0))
        found = _either(op("eq", degree, lit(0, degree)), lit(1, x), how(let, x, degree))
        return _either(op("le", n, -1.0), lit(0, x), found)

    return formula


_CHEBYSHEV: dict[str, Formula] = {
    "t": _by_doubling(lambda n: lit(1, n), lambda x: x),
    "u": _by_doubling(lambda n: n + 1.0, lambda x: lit(0, x)),
    "v": _by_doubling(lambda n: lit(1, n), lambda x: lit(1, x)),
    "w": _by_doubling(lambda n: n * 2.0 + 1.0, lambda x: lit(-1, x)),
}
# Keyed by torch's name.
FORMULAS: dict[str, Formula] = {
    f"special_{name}": _of_degree(how)
    for name, how in {
        **{f"chebyshev_polynomial_{kind}": how for kind, how in _CHEBYSHEV.items()},
        **{f"shifted_chebyshev_polynomial_{kind}": _shifted(how) for kind, how in _CHEBYSHEV.items()},
        "hermite_polynomial_h": _by_recurrence(lambda x: x * 2.0, lambda x, q, p, k: x * 2.0 * q - p * (2 * k)),
        "hermite_polynomial_he": _by_recurrence(lambda x: x, lambda x, q, p, k: x * q - p * k),
        "laguerre_polynomial_l": _by_recurrence(
            lambda x: 1.0 - x, lambda x, q, p, k: (x * (-1 / (k + 1)) + (2 * k + 1) / (k + 1)) * q - p * (k / (k + 1))
        ),
        "legendre_polynomial_p": _by_recurrence(
            lambda x: x, lambda x, q, p, k: x * q * ((2 * k + 1) / (k + 1)) - p * (k / (k + 1))
        ),
    }.items()
}
