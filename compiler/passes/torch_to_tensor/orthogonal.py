"""Orthogonal polynomials, whose degrees are elements of a tensor: Chebyshev's by angles, the others by recurrence."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.expr import Expr, both, op
from compiler.passes.torch_to_tensor.formula import is_whole, lit, where

E = Expr
Let = Callable[[E], E]
Formula = Callable[[Let, E, E], E]
MOST = 32  # the highest degree that is found by recurrence; a program refuses higher ones as it runs


def _odd(n: E) -> E:
    return op("not", is_whole(n * 0.5))


def _angled(let: Let, a: E, at_one: E, how: Callable[..., E]) -> E:
    """A formula in the angle of a number that is not negative, which beyond 1 is imaginary."""
    inner = let(op("acos", where(op("lt", a, 1.0), a, lit(0, a))))
    outer = let(op("acosh", where(op("gt", a, 1.0), a, lit(2, a))))

    def of(angle: E, cosine: str, sine: str) -> E:
        return how(angle, lambda t: op(cosine, t), lambda t: op(sine, t))

    found = where(op("lt", a, 1.0), of(inner, "cos", "sin"), of(outer, "cosh", "sinh"))
    return where(op("eq", a, 1.0), at_one, where(op("isnan", a), a, found))


def _first(let: Let, x: E, n: E) -> E:
    found = let(_angled(let, let(op("abs", x)), lit(1, x), lambda t, cos, sin: cos(n * t)))
    return where(both(op("lt", x, 0.0), _odd(n)), -found, found)


def _second(let: Let, x: E, n: E) -> E:
    found = let(_angled(let, let(op("abs", x)), n + 1.0, lambda t, cos, sin: sin((n + 1.0) * t) / sin(t)))
    return where(both(op("lt", x, 0.0), _odd(n)), -found, found)


def _third(let: Let, x: E, n: E) -> E:
    """That of -x is the fourth of x, or its negative."""
    a = let(op("abs", x))
    third = _angled(let, a, lit(1, x), lambda t, cos, sin: cos((n + 0.5) * t) / cos(t * 0.5))
    fourth = let(_angled(let, a, n * 2.0 + 1.0, lambda t, cos, sin: sin((n + 0.5) * t) / sin(t * 0.5)))
    return where(op("lt", x, 0.0), where(_odd(n), -fourth, fourth), third)


def _fourth(let: Let, x: E, n: E) -> E:
    found = let(_third(let, let(-x), n))
    return where(_odd(n), -found, found)


def _by_recurrence(first: Callable[[E], E], step: Callable[[E, E, E, float], E]) -> Formula:
    """From 1 and `first`, each next one by `step(x, last, before, k)`, which is that of degree k + 1."""

    def formula(let: Let, x: E, n: E) -> E:
        n = op("require", op("le", n, float(MOST)), n)
        before, last = lit(1, x), let(first(x))
        found = last
        for k in range(1, MOST):
            before, last = last, let(step(x, last, before, float(k)))
            found = where(op("gt", n, float(k)), last, found)
        return found

    return formula


def _shifted(how: Formula) -> Formula:
    return lambda let, x, n: how(let, let(x * 2.0 - 1.0), n)


def _of_degree(how: Formula) -> Formula:
    """Degrees are cut to whole numbers; a polynomial of a negative one is 0."""

    def formula(let: Let, x: E, n: E) -> E:
        degree = let(op("max", op("trunc", n), 0.0))
        found = where(op("eq", degree, 0.0), lit(1, x), how(let, x, degree))
        return where(op("le", n, -1.0), lit(0, x), found)

    return formula


_CHEBYSHEV: dict[str, Formula] = {"t": _first, "u": _second, "v": _third, "w": _fourth}
# By the names that torch has for them.
FORMULAS: dict[str, Formula] = {
    f"special_{name}": _of_degree(how)
    for name, how in {
        **{f"chebyshev_polynomial_{kind}": how for kind, how in _CHEBYSHEV.items()},
        **{f"shifted_chebyshev_polynomial_{kind}": _shifted(how) for kind, how in _CHEBYSHEV.items()},
        "hermite_polynomial_h": _by_recurrence(lambda x: x * 2.0, lambda x, q, p, k: (x * q - p * k) * 2.0),
        "hermite_polynomial_he": _by_recurrence(lambda x: x, lambda x, q, p, k: x * q - p * k),
        "laguerre_polynomial_l": _by_recurrence(
            lambda x: 1.0 - x, lambda x, q, p, k: ((2 * k + 1 - x) * q - p * k) / (k + 1)
        ),
        "legendre_polynomial_p": _by_recurrence(
            lambda x: x, lambda x, q, p, k: (x * q * (2 * k + 1) - p * k) / (k + 1)
        ),
    }.items()
}
