"""Special functions as torch's ops of what there are formulas for: series, rational approximations, recurrences.

Each computes in f32 at least, whatever it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_int_to_real as in_real

_aten = torch.ops.aten


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """From the coefficient of the highest power on."""
    total = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _raised(x: Tensor, least: int, term: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Positive numbers raised by ones to `least` or more, and the sum of the terms of those passed."""
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


@in_real
def _erfinv(y: Tensor) -> Tensor:
    """A rational approximation in the middle and one at the ends, and two steps by Halley: at the ends of erfc, since
    erf hardly tells numbers beside 1 apart."""
    size = y.abs()
    z = y * y
    middle = y * _polynomial(z, (-0.140543331, 0.914624893, -1.645349621, 0.886226899))
    middle = middle / _polynomial(z, (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0))
    far = torch.sqrt(-torch.log((1 - torch.where(size < 1, size, 0)) / 2))
    end = torch.copysign(_polynomial(far, (1.641345311, 3.429567803, -1.624906493, -1.970840454)), y)
    end = end / _polynomial(far, (1.637067800, 3.543889200, 1.0))
    x = torch.where(size <= 0.7, middle, end)
    for _ in range(2):
        above = torch.copysign(1 - size - torch.erfc(x.abs()), y)
        above = torch.where(size <= 0.7, torch.erf(x) - y, above)
        step = above / (2 / math.sqrt(math.pi) * torch.exp(-x * x))
        x = x - step / (1 + x * step)
    whole = torch.where(size == 1, torch.copysign(torch.full_like(y, math.inf), y), math.nan)
    return torch.where(size < 1, x, whole)


def _bessel(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    """The modified Bessel function of the first kind, of order 0 or 1: its power series, whose terms have one sign, up
    to 20, and its asymptotic series beyond. Scaled, it is times exp(-|x|)."""
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
    """How to decompose each."""
    return {
        _aten.digamma.default: _digamma,
        _aten.polygamma.default: _polygamma,
        _aten.erfinv.default: _erfinv,
        _aten.i0.default: _bessel(0, False),
        _aten.special_i0e.default: _bessel(0, True),
        _aten.special_modified_bessel_i0.default: _bessel(0, False),
        _aten.special_modified_bessel_i1.default: _bessel(1, False),
        _aten.special_i1.default: _bessel(1, False),
        _aten.special_i1e.default: _bessel(1, True),
    }
