"""Bessel and Airy functions: power series near zero and asymptotic series beyond, both in f64.

The formulas are those of Abramowitz and Stegun, chapters 9 and 10. The switch between the series is where the
cancellation of the one equals the truncation error of the other; there both errors are within 4e-8 of the largest term,
less than a rounding of f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

from compiler.ir.expr import Expr, op
from compiler.passes.torch_to_tensor.formula import inverse, lit, polynomial, where

E = Expr
Let = Callable[[E], E]
_EULER = 0.57721566490153286
_FAR, _FAR_K = 12.0, 9.2  # where the asymptotic series take over: for J and Y, and for K
_LOW, _HIGH = -6.9, 5.75  # the interval of the power series for Ai


def _series(square: E, order: int, weight: Callable[[int], float]) -> E:
    """The sum of weight(k) square^k / (k! (k + order)!); for arguments up to 36 within 1e-11 of its largest term."""
    return polynomial(square, [weight(k) / (math.factorial(k) * math.factorial(k + order)) for k in range(26)])


def _plain(k: int) -> float:
    return 1.0


def _harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


def _digammas(order: int) -> Callable[[int], float]:
    """digamma(k + 1) + digamma(k + 1 + order)."""
    return lambda k: _harmonic(k) + _harmonic(k + order) - 2 * _EULER


def _tail(order: int, count: int) -> list[float]:
    """Coefficients of the asymptotic series, by powers of 1/x."""
    factors = ((4 * order**2 - (2 * k - 1) ** 2) / (8 * k) for k in range(1, count))
    return list(accumulate(factors, mul, initial=1.0))


def _alternating(let: Let, coefficients: Sequence[float], over: E) -> tuple[E, E]:
    """Sums of the even and of the odd powers, with alternating signs within each."""
    square = let(over * over)
    even, odd = ([(-1) ** k * c for k, c in enumerate(coefficients[first::2])] for first in (0, 1))
    return let(polynomial(square, even)), let(polynomial(square, odd) * over)


def _wave(let: Let, x: E, order: int, second: bool) -> E:
    """J, or with `second` Y, of order 0 or 1, for arguments from `_FAR` on."""
    p, q = _alternating(let, _tail(order, 24), let(inverse(x)))
    cosine, sine = let(op("cos", x)), let(op("sin", x))
    c, s = (sine - cosine, -cosine - sine) if order else (cosine + sine, sine - cosine)  # of x - (order + 1/2) pi/2
    return (p * s + q * c if second else p * c - q * s) / op("sqrt", x * math.pi)


def _first_kind(order: int) -> Callable[[Let, E], E]:
    def formula(let: Let, x: E) -> E:
        size = let(op("abs", x))
        small = let(op("min", size, _FAR))
        near = _series(let(small * small * -0.25), order, _plain)
        far = _wave(let, let(op("max", size, _FAR)), order, False)
        found = where(op("gt", size, _FAR), far, near * small * 0.5 if order else near)
        return where(op("lt", x, 0.0), -found, found) if order else found

    return formula


def _second_kind(order: int) -> Callable[[Let, E], E]:
    def formula(let: Let, x: E) -> E:
        half = let(op("min", x, _FAR) * 0.5)
        square = let(half * half * -1.0)
        near = op("log", half) * _series(square, order, _plain) * 2.0 - _series(square, order, _digammas(order))
        near = (near * half - inverse(half) if order else near) / math.pi
        found = where(op("gt", x, _FAR), _wave(let, let(op("max", x, _FAR)), order, True), near)
        return _of_positive(x, found, -math.inf)

    return formula


def _of_positive(x: E, found: E, at_zero: float) -> E:
    return where(op("gt", x, 0.0), found, where(op("eq", x, 0.0), lit(at_zero, x), lit(math.nan, x)))


def _modified(order: int, scaled: bool) -> Callable[[Let, E], E]:
    """K of this order; if `scaled`, times exp(x)."""

    def formula(let: Let, x: E) -> E:
        small, large = let(op("min", x, _FAR_K)), let(op("max", x, _FAR_K))
        half = let(small * 0.5)
        square = let(half * half)
        near = _series(square, order, _digammas(order)) * 0.5 - op("log", half) * _series(square, order, _plain)
        near = inverse(small) - near * half if order else near
        far = polynomial(let(inverse(large)), _tail(order, 19)) * op("sqrt", inverse(large) * (math.pi / 2))
        near, far = (near * op("exp", small), far) if scaled else (near, far * op("exp", -large))
        return _of_positive(x, where(op("gt", x, _FAR_K), far, near), math.inf)

    return formula


def _airy(let: Let, x: E) -> E:
    near = let(op("max", op("min", x, _HIGH), _LOW))
    cube = let(near * near * near)
    start, slope = 3 ** (-2 / 3) / math.gamma(2 / 3), 3 ** (-1 / 3) / math.gamma(1 / 3)

    def series(first: int) -> E:
        steps = (1 / ((3 * k + first) * (3 * k + first - 1)) for k in range(1, 24))
        return let(polynomial(cube, list(accumulate(steps, mul, initial=1.0))))

    middle = series(0) * start - near * series(1) * slope
    factors = ((6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)) for k in range(1, 19))
    tail = list(accumulate(factors, mul, initial=1.0))
    size = let(where(op("lt", x, 0.0), op("max", -x, -_LOW), op("max", x, _HIGH)))
    root = let(op("sqrt", size))
    angle, scale = let(size * root * (2 / 3)), let(op("sqrt", root * math.pi))
    over = let(inverse(angle))
    above = op("exp", -angle) * polynomial(over, [(-1) ** k * c for k, c in enumerate(tail)]) / (scale * 2.0)
    even, odd = _alternating(let, tail, over)
    cosine, sine = let(op("cos", angle)), let(op("sin", angle))
    below = (even * (cosine + sine) + odd * (sine - cosine)) / (scale * math.sqrt(2))
    found = where(op("gt", x, _HIGH), above, where(op("lt", x, _LOW), below, middle))
    return where(op("eq", op("abs", x), math.inf), lit(math.nan, x), found)


def _spherical(let: Let, x: E) -> E:
    small = op("lt", op("abs", x), 0.5)
    inner = let(where(small, x, lit(0, x)))
    near = polynomial(let(inner * inner), [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)])
    found = where(small, near, op("sin", x) / where(small, lit(1, x), x))
    return where(op("eq", op("abs", x), math.inf), lit(0, x), found)


# Keyed by torch's name.
FORMULAS: dict[str, Callable[[Let, E], E]] = {
    "special_bessel_j0": _first_kind(0), "special_bessel_j1": _first_kind(1),
    "special_bessel_y0": _second_kind(0), "special_bessel_y1": _second_kind(1),
    "special_modified_bessel_k0": _modified(0, False), "special_modified_bessel_k1": _modified(1, False),
    "special_scaled_modified_bessel_k0": _modified(0, True), "special_scaled_modified_bessel_k1": _modified(1, True),
    "special_airy_ai": _airy, "special_spherical_bessel_j0": _spherical,
}  # fmt: skip
