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


def _unit_weight(k: int) -> float:
    return 1.0


def _harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


def _digammas(order: int) -> Callable[[int], float]:
    """digamma(k + 1) + digamma(k + 1 + order)."""
    return lambda k: _harmonic(k) + _harmonic(k + order) - 2 * _EULER


def _asymptotic_coefficients(order: int, count: int) -> list[float]:
    """Coefficients of the asymptotic series, by powers of 1/x."""
    factors = ((4 * order**2 - (2 * k - 1) ** 2) / (8 * k) for k in range(1, count))
    return list(accumulate(factors, mul, initial=1.0))


def _alternating(let: Let, coefficients: Sequence[float], inverse_x: E) -> tuple[E, E]:
    """Sums of the even and of the odd powers, with alternating signs within each."""
    square = let(inverse_x * inverse_x)
    even, odd = ([(-1) ** k * c for k, c in enumerate(coefficients[first::2])] for first in (0, 1))
    return let(polynomial(square, even)), let(polynomial(square, odd) * inverse_x)


def _asymptotic_wave(let: Let, x: E, order: int, second: bool) -> E:
    """J, or with `second` Y, of order 0 or 1, for arguments from `_FAR` on."""
    p, q = _alternating(let, _asymptotic_coefficients(order, 24), let(inverse(x)))
    cosine, sine = let(op("cos", x)), let(op("sin", x))
    c, s = (sine - cosine, -cosine - sine) if order else (cosine + sine, sine - cosine)  # of x - (order + 1/2) pi/2
    return (p * s + q * c if second else p * c - q * s) / op("sqrt", x * math.pi)


def _first_kind(order: int) -> Callable[[Let, E], E]:
    def formula(let: Let, x: E) -> E:
        magnitude = let(op("abs", x))
        small = let(op("min", magnitude, _FAR))
        by_series = _series(let(small * small * -0.25), order, _unit_weight)
        asymptotic = _asymptotic_wave(let, let(op("max", magnitude, _FAR)), order, False)
        value = where(op("gt", magnitude, _FAR), asymptotic, by_series * small * 0.5 if order else by_series)
        return where(op("lt", x, 0.0), -value, value) if order else value

    return formula


def _second_kind(order: int) -> Callable[[Let, E], E]:
    def formula(let: Let, x: E) -> E:
        half = let(op("min", x, _FAR) * 0.5)
        square = let(half * half * -1.0)
        by_series = op("log", half) * _series(square, order, _unit_weight) * 2.0 - _series(
            square, order, _digammas(order)
        )
        by_series = (by_series * half - inverse(half) if order else by_series) / math.pi
        value = where(op("gt", x, _FAR), _asymptotic_wave(let, let(op("max", x, _FAR)), order, True), by_series)
        return _of_positive(x, value, -math.inf)

    return formula


def _of_positive(x: E, value: E, at_zero: float) -> E:
    return where(op("gt", x, 0.0), value, where(op("eq", x, 0.0), lit(at_zero, x), lit(math.nan, x)))


def _modified(order: int, scaled: bool) -> Callable[[Let, E], E]:
    """K of this order; if `scaled`, times exp(x)."""

    def formula(let: Let, x: E) -> E:
        small, large = let(op("min", x, _FAR_K)), let(op("max", x, _FAR_K))
        half = let(small * 0.5)
        square = let(half * half)
        by_series = _series(square, order, _digammas(order)) * 0.5 - op("log", half) * _series(
            square, order, _unit_weight
        )
        by_series = inverse(small) - by_series * half if order else by_series
        asymptotic = polynomial(let(inverse(large)), _asymptotic_coefficients(order, 19)) * op(
            "sqrt", inverse(large) * (math.pi / 2)
        )
        by_series, asymptotic = (
            (by_series * op("exp", small), asymptotic) if scaled else (by_series, asymptotic * op("exp", -large))
        )
        return _of_positive(x, where(op("gt", x, _FAR_K), asymptotic, by_series), math.inf)

    return formula


def _airy(let: Let, x: E) -> E:
    inner = let(op("max", op("min", x, _HIGH), _LOW))
    cube = let(inner * inner * inner)
    value_at_0, slope_at_0 = 3 ** (-2 / 3) / math.gamma(2 / 3), 3 ** (-1 / 3) / math.gamma(1 / 3)

    def series(first: int) -> E:
        steps = (1 / ((3 * k + first) * (3 * k + first - 1)) for k in range(1, 24))
        return let(polynomial(cube, list(accumulate(steps, mul, initial=1.0))))

    middle = series(0) * value_at_0 - inner * series(1) * slope_at_0
    factors = ((6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)) for k in range(1, 19))
    coefficients = list(accumulate(factors, mul, initial=1.0))
    magnitude = let(where(op("lt", x, 0.0), op("max", -x, -_LOW), op("max", x, _HIGH)))
    root = let(op("sqrt", magnitude))
    angle, scale = let(magnitude * root * (2 / 3)), let(op("sqrt", root * math.pi))
    inverse_angle = let(inverse(angle))
    above = (
        op("exp", -angle)
        * polynomial(inverse_angle, [(-1) ** k * c for k, c in enumerate(coefficients)])
        / (scale * 2.0)
    )
    even, odd = _alternating(let, coefficients, inverse_angle)
    cosine, sine = let(op("cos", angle)), let(op("sin", angle))
    below = (even * (cosine + sine) + odd * (sine - cosine)) / (scale * math.sqrt(2))
    value = where(op("gt", x, _HIGH), above, where(op("lt", x, _LOW), below, middle))
    return where(op("eq", op("abs", x), math.inf), lit(math.nan, x), value)


def _spherical(let: Let, x: E) -> E:
    is_small = op("lt", op("abs", x), 0.5)
    inner = let(where(is_small, x, lit(0, x)))
    by_series = polynomial(let(inner * inner), [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)])
    value = where(is_small, by_series, op("sin", x) / where(is_small, lit(1, x), x))
    return where(op("eq", op("abs", x), math.inf), lit(0, x), value)


# Keyed by torch's name.
FORMULAS: dict[str, Callable[[Let, E], E]] = {
    "special_bessel_j0": _first_kind(0), "special_bessel_j1": _first_kind(1),
    "special_bessel_y0": _second_kind(0), "special_bessel_y1": _second_kind(1),
    "special_modified_bessel_k0": _modified(0, False), "special_modified_bessel_k1": _modified(1, False),
    "special_scaled_modified_bessel_k0": _modified(0, True), "special_scaled_modified_bessel_k1": _modified(1, True),
    "special_airy_ai": _airy, "special_spherical_bessel_j0": _spherical,
}  # fmt: skip
