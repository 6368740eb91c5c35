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


def _raised(x: Tensor, least: int, term: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Increment positive numbers until they are at least `least`, and sum `term` over the numbers passed."""
    total = torch.zeros_like(x)
    for _ in range(least):
        near = x < least
        total = torch.where(near, total + term(x), total)
        x = torch.where(near, x + 1, x)
    return x, total


@in_real
def _digamma(x: Tensor) -> Tensor:
    """By reflection to positive numbers, by recurrence to those from 10 on, and there by the asymptotic series."""
    below = x < 0
    up, total = _raised(torch.where(below, 1 - x, x), 10, lambda n: -1 / n)
    bernoulli = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
    square = 1 / (up * up)
    found = total + up.log() - 0.5 / up - square * _polynomial(square, bernoulli)
    reflected = found - math.pi / torch.tan(math.pi * (x - x.trunc()))
    found = torch.where(below, torch.where(x == x.trunc(), math.nan, reflected), found)
    return torch.where(x == 0, torch.copysign(torch.full_like(x, math.inf), -x), found)


@in_real
def _trigamma(x: Tensor) -> Tensor:
    low = x < 0.5
    up, total = _raised(torch.where(low, 1 - x, x), 20, lambda n: 1 / (n * n))
    square = 1 / (up * up)
    bernoulli = (-1 / 30, 1 / 42, -1 / 30, 1 / 6)
    total = total + (1 + 0.5 / up + square * _polynomial(square, bernoulli)) / up
    sine = torch.sin(math.pi * x)
    return torch.where(low, math.pi**2 / (sine * sine) - total, total)


@in_real
def _higher_polygamma(x: Tensor, n: int) -> Tensor:
    size = math.factorial(n) if n < 170 else math.inf
    found: Tensor = torch.special.zeta(float(n + 1), x) * (size if n % 2 else -size)
    return found


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
_ENDS = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR_ENDS = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def _ratio(x: Tensor, parts: Sequence[Sequence[float]]) -> Tensor:
    above, below = parts
    return _polynomial(x, above) / _polynomial(x, below)


def _quantile(beyond: Tensor, least: Tensor, *, unit: float = 1.0, times: float = 1.0) -> Tensor:
    """`times` times the normal quantile of the probability 0.5 + beyond * unit; `least` is the smaller tail.

    Both are given, since computing one of them from the other cancels near 0 or 1.
    """
    share = beyond * unit
    middle = beyond * (_ratio(0.180625 - share * share, _MIDDLE) * (unit * times))
    depth = torch.sqrt(-torch.log(least))
    end = torch.where(depth <= 5, _ratio(depth - 1.6, _ENDS), _ratio(depth - 5, _FAR_ENDS)) * times
    return torch.where(share.abs() <= 0.425, middle, torch.copysign(end, beyond))


def _between(x: Tensor, least: Tensor, found: Tensor, beyond: Tensor) -> Tensor:
    """`found`, but an infinity if the tail is empty, and NaN outside of the domain."""
    whole = torch.copysign(torch.full_like(x, math.inf), beyond)
    return torch.where(least > 0, found, torch.where(least == 0, whole, math.nan))


@in_real
def _erfinv(y: Tensor) -> Tensor:
    least = (1 - y.abs()) / 2
    return _between(y, least, _quantile(y, least, unit=0.5, times=math.sqrt(0.5)), y)


@in_real
def _ndtri(y: Tensor) -> Tensor:
    wide = y.to(torch.float64)
    least, beyond = torch.minimum(wide, 1 - wide), wide - 0.5
    return _between(wide, least, _quantile(beyond, least), beyond).to(y.dtype)


def _bessel(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    """The modified Bessel function of the first kind, of order 0 or 1; if `scaled`, times exp(-|x|).

    Up to 20 it is the power series, whose terms have one sign, and beyond that the asymptotic series.
    """
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in reversed(range(55))]
    tail = [1.0]
    for k in range(1, 31):
        tail.append(-tail[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))

    def function(x: Tensor) -> Tensor:
        size = x.abs()
        small, large = size.clamp(max=20.0), size.clamp(min=20.0)
        near = _polynomial(small * small / 4, terms) * (torch.exp(-small) if scaled else 1)
        far = _polynomial(1 / large, tail[::-1]) / (math.sqrt(2 * math.pi) * torch.sqrt(large))
        far = far if scaled else torch.exp(large / 2) * far * torch.exp(large / 2)
        near = near * x / 2 if order else near
        return torch.where(size <= 20, near, torch.copysign(far, x) if order else far)

    made: Callable[[Tensor], Tensor] = in_real(function)
    return made


def functions() -> dict[Any, Callable[..., Any]]:
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
