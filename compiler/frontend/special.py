"""Special functions as series, rational approximations and recurrences in torch ops, computed in f32 or wider."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_int_to_real as in_real

_aten = torch.ops.aten


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Horner's scheme; coefficients from the highest power down."""
    total = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _shift_up(x: Tensor, limit: int, term: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Increment positive numbers until they are at least `limit`, and sum `term` over the numbers passed."""
    total = torch.zeros_like(x)
    for _ in range(limit):
        is_below = x < limit
        total = torch.where(is_below, total + term(x), total)
        x = torch.where(is_below, x + 1, x)
    return x, total


@in_real
def _digamma(x: Tensor) -> Tensor:
    """By reflection to positive numbers, by recurrence to those from 10 on, and there by the asymptotic series."""
    is_negative = x < 0
    shifted, total = _shift_up(torch.where(is_negative, 1 - x, x), 10, lambda n: -1 / n)
    bernoulli = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
    square = 1 / (shifted * shifted)
    result = total + shifted.log() - 0.5 / shifted - square * _polynomial(square, bernoulli)
    reflected = result - math.pi / torch.tan(math.pi * (x - x.trunc()))
    result = torch.where(is_negative, torch.where(x == x.trunc(), math.nan, reflected), result)
    return torch.where(x == 0, torch.copysign(torch.full_like(x, math.inf), -x), result)


@in_real
def _trigamma(x: Tensor) -> Tensor:
    is_small = x < 0.5
    shifted, total = _shift_up(torch.where(is_small, 1 - x, x), 20, lambda n: 1 / (n * n))
    square = 1 / (shifted * shifted)
    bernoulli = (-1 / 30, 1 / 42, -1 / 30, 1 / 6)
    total = total + (1 + 0.5 / shifted + square * _polynomial(square, bernoulli)) / shifted
    sine = torch.sin(math.pi * x)
    return torch.where(is_small, math.pi**2 / (sine * sine) - total, total)


@in_real
def _higher_polygamma(x: Tensor, n: int) -> Tensor:
    factor = math.factorial(n) if n < 170 else math.inf
    result: Tensor = torch.special.zeta(float(n + 1), x) * (factor if n % 2 else -factor)
    return result


def _polygamma(n: int, x: Tensor) -> Any:
    return (_digamma, _trigamma)[n](x) if n < 2 else _higher_polygamma(x, n)


# The quantiles of the normal distribution by Wichura's algorithm AS 241, which is accurate to 1e-16. Numerators and
# denominators: in the middle, for tails above 1e-11, and for smaller tails.
_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457, 13731.693765509461125,
     1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867, 5394.1960214247511077,
     687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAILS = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR_TAILS = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def _ratio(x: Tensor, coefficients: Sequence[Sequence[float]]) -> Tensor:
    numerator, denominator = coefficients
    return _polynomial(x, numerator) / _polynomial(x, denominator)


def _quantile(from_half: Tensor, tail: Tensor, *, unit: float = 1.0, factor: float = 1.0) -> Tensor:
    """`factor` times the normal quantile of the probability 0.5 + beyond * unit; `tail` is the smaller tail.

    Both are given, since computing one of them from the other cancels near 0 or 1.
    """
    offset = from_half * unit
    middle = from_half * (_ratio(0.180625 - offset * offset, _MIDDLE) * (unit * factor))
    depth = torch.sqrt(-torch.log(tail))
    in_tail = torch.where(depth <= 5, _ratio(depth - 1.6, _TAILS), _ratio(depth - 5, _FAR_TAILS)) * factor
    return torch.where(offset.abs() <= 0.425, middle, torch.copysign(in_tail, from_half))


def _with_edges(x: Tensor, tail: Tensor, quantile: Tensor, from_half: Tensor) -> Tensor:
    """`quantile`, but an infinity if the tail is empty, and NaN outside of the domain."""
    infinity = torch.copysign(torch.full_like(x, math.inf), from_half)
    return torch.where(tail > 0, quantile, torch.where(tail == 0, infinity, math.nan))


@in_real
def _erfinv(y: Tensor) -> Tensor:
    tail = (1 - y.abs()) / 2
    return _with_edges(y, tail, _quantile(y, tail, unit=0.5, factor=math.sqrt(0.5)), y)


@in_real
def _ndtri(y: Tensor) -> Tensor:
    wide = y.to(torch.float64)
    tail, from_half = torch.minimum(wide, 1 - wide), wide - 0.5
    return _with_edges(wide, tail, _quantile(from_half, tail), from_half).to(y.dtype)


def _bessel(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    """The modified Bessel function of the first kind, of order 0 or 1; if `scaled`, times exp(-|x|).

    Up to 20 it is the power series, whose terms have one sign, and beyond that the asymptotic series.
    """
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in reversed(range(55))]
    coefficients = [1.0]
    for k in range(1, 31):
        coefficients.append(-coefficients[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))

    def function(x: Tensor) -> Tensor:
        magnitude = x.abs()
        small, large = magnitude.clamp(max=20.0), magnitude.clamp(min=20.0)
        by_series = _polynomial(small * small / 4, terms) * (torch.exp(-small) if scaled else 1)
        asymptotic = _polynomial(1 / large, coefficients[::-1]) / (math.sqrt(2 * math.pi) * torch.sqrt(large))
        asymptotic = asymptotic if scaled else torch.exp(large / 2) * asymptotic * torch.exp(large / 2)
        by_series = by_series * x / 2 if order else by_series
        return torch.where(magnitude <= 20, by_series, torch.copysign(asymptotic, x) if order else asymptotic)

    in_result_type: Callable[[Tensor], Tensor] = in_real(function)
    return in_result_type


def special_decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition of each op."""
    return {
        _aten.digamma.default: _digamma,
        _aten.polygamma.default: _polygamma,
        _aten.erfinv.default: _erfinv,
        _aten.special_ndtri.default: _ndtri,
        _aten.i0.default: _bessel(0, False),
        _aten.special_i0e.default: _bessel(0, True),
        _aten.special_modified_bessel_i0.default: _bessel(0, False),
        _aten.special_modified_bessel_i1.default: _bessel(1, False),
        _aten.special_i1.default: _bessel(1, False),
        _aten.special_i1e.default: _bessel(1, True),
    }
