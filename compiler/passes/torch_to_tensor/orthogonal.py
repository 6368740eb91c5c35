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
MAX_DEGREE = 32  # the highest degree computed by recurrence; higher ones fail at run time


def _select(cond: E, a: E, b: E) -> E:
    """A select; just one of the two if the condition is a literal."""
    return (a if cond.value else b) if isinstance(cond, Const) else where(cond, a, b)


def _by_doubling(at_one: Callable[[E], E], odd: Callable[[E], E]) -> Formula:
    """A Chebyshev polynomial P by the bits of its degree, from the highest down.

    With T those of the first kind, P(2k) = 2 T(k) P(k) - 1 and P(2k + 1) = 2 T(k + 1) P(k) - `odd`. The state is T(k),
    T(k + 1) and P(k) for the degree k of the bits so far. Errors grow at most with the square of the degree.
    """

    def formula(let: Let, x: E, n: E) -> E:
        inner, one = let(op("max", op("min", x, 1e300), -1e300)), lit(1, x)  # larger values would give inf - inf
        low, high, value = one, inner, one
        remaining = let(op("min", n, lit(1 << BITS, n)))
        for bit in reversed(range(int(remaining.value).bit_length() if isinstance(remaining, Const) else BITS + 1)):
            bit_value = lit(1 << bit, n)
            is_set, has_begun, is_above = (
                op("ge", remaining, bit_value),
                op("ge", n, bit_value),
                op("ge", n, lit(2 << bit, n)),
            )
            doubled = let(_select(is_set, high, low) * 2.0)
            value = let(_select(has_begun, doubled * value - _select(is_set, odd(inner), one), one))
            low_term, high_term = _select(is_set, inner, one), _select(is_set, one, inner)
            low, high = (
                let(_select(is_above, doubled * low - low_term, low_term)),
                let(_select(has_begun, doubled * high - high_term, high_term)),
            )
            remaining = let(_select(is_set, remaining - bit_value, remaining))
        return where(op("isnan", x), x, where(op("eq", x, 1.0), at_one(cast(n, f64)), value))

    return formula


def _by_recurrence(first: Callable[[E], E], step: Callable[[E, E, E, float], E]) -> Formula:
    """From 1 and `first`, `step(x, current, previous, k)` gives the polynomial of degree k + 1."""

    def formula(let: Let, x: E, n: E) -> E:
        n = op("require", op("le", n, lit(MAX_DEGREE, n)), n)
        previous, current = lit(1, x), let(first(x))
        value = current
        for k in range(1, min(MAX_DEGREE, int(n.value)) if isinstance(n, Const) else MAX_DEGREE):
            previous, current = current, let(step(x, current, previous, float(k)))
            value = _select(op("gt", n, lit(k, n)), current, value)
        return value

    return formula


def _shift_argument(formula: Formula) -> Formula:
    return lambda let, x, n: formula(let, let(x * 2.0 - 1.0), n)


def _with_truncated_degree(polynomial: Formula) -> Formula:
    """Degrees are truncated to integers; a polynomial of negative degree is 0."""

    def formula(let: Let, x: E, n: E) -> E:
        if isinstance(n, Const) and math.isfinite(n.value):
            degree: E = const(max(int(n.value), 0), i64)
        else:
            degree = let(op("max", op("trunc", n), 0.0))
        value = _select(op("eq", degree, lit(0, degree)), lit(1, x), polynomial(let, x, degree))
        return _select(op("le", n, -1.0), lit(0, x), value)

    return formula


_CHEBYSHEV: dict[str, Formula] = {
    "t": _by_doubling(lambda n: lit(1, n), lambda x: x),
    "u": _by_doubling(lambda n: n + 1.0, lambda x: lit(0, x)),
    "v": _by_doubling(lambda n: lit(1, n), lambda x: lit(1, x)),
    "w": _by_doubling(lambda n: n * 2.0 + 1.0, lambda x: lit(-1, x)),
}
# Keyed by torch's name.
FORMULAS: dict[str, Formula] = {
    f"special_{name}": _with_truncated_degree(how)
    for name, how in {
        **{f"chebyshev_polynomial_{kind}": how for kind, how in _CHEBYSHEV.items()},
        **{f"shifted_chebyshev_polynomial_{kind}": _shift_argument(how) for kind, how in _CHEBYSHEV.items()},
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
