"""The regularised lower and upper incomplete gamma functions P(a, x) and Q(a, x) = 1 - P(a, x), in f64.

With D = x^a e^-x / gamma(a), P for x <= a is D times the integral of exp(x (1 - e^-w) - a w) over w >= 0, and Q for x >
a is D times that of exp(a w - x (e^w - 1)); the other one is 1 minus this, so no digits cancel. Both integrands
decrease from w = 0 with a known width. The substitution w = width * exp(t - e^-t) (Takahasi and Mori) makes the
integral a sum over equal steps of t that is exact to rounding. For x < 1, both functions are power series.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_STEP, _FIRST, _LAST = 1 / 16, -56, 64  # step, first and last multiple of t
_TERMS = 19  # terms of the power series
_LARGE = 10.0  # from here on, Stirling's series for gamma
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


def _lower_and_upper(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P and Q for positive numbers."""
    below_1, above_1 = _by_series(a, x.clamp(max=1.0))
    y = x.clamp(min=1.0)
    is_lower = y <= a
    share = _integral(a, y, is_lower) * _prefactor(a, y)
    return (
        torch.where(x < 1, below_1, torch.where(is_lower, share, 1 - share)),
        torch.where(x < 1, above_1, torch.where(is_lower, 1 - share, share)),
    )


def _by_series(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P by a series of positive terms, Q by one of terms that are differences."""
    lower_sum, term = torch.ones_like(x), torch.ones_like(x)
    upper_sum, power = torch.zeros_like(x), torch.ones_like(x)
    for n in range(1, _TERMS):
        term, power = term * x / (a + n), power * x / -n
        lower_sum, upper_sum = lower_sum + term, upper_sum + power / (a + n)
    log_prefactor = a * x.log() - torch.lgamma(a + 1)
    return torch.exp(log_prefactor - x) * lower_sum, -torch.expm1(log_prefactor) - torch.exp(
        log_prefactor
    ) * a * upper_sum


def _integral(a: Tensor, x: Tensor, is_lower: Tensor) -> Tensor:
    width = 1 / ((x - a).abs() + x.sqrt())
    t = torch.arange(_FIRST, _LAST + 1, dtype=x.dtype, device=x.device) * _STEP
    nodes = torch.exp(t - torch.exp(-t))
    a, x, is_lower = a.unsqueeze(-1), x.unsqueeze(-1), is_lower.unsqueeze(-1)
    w = width.unsqueeze(-1) * nodes
    values = torch.exp(-(x - a).abs() * w - x * _expm1_remainder(torch.where(is_lower, -w, w)))
    return (values * nodes * (1 + torch.exp(-t))).sum(-1) * width * _STEP


def _expm1_remainder(w: Tensor) -> Tensor:
    """e^w - 1 - w, near 0 by its series."""
    series = torch.ones_like(w)
    for n in reversed(range(3, 15)):
        series = 1 + series * w / n
    return torch.where(w.abs() < 0.25, series * w * w / 2, torch.expm1(w) - w)


def _prefactor(a: Tensor, x: Tensor) -> Tensor:
    """D. For large a by Stirling's series, as x^a and gamma(a) would overflow or cancel."""
    large = a.clamp(min=_LARGE)
    square, series = 1 / (large * large), torch.zeros_like(a)
    for c in reversed(_STIRLING):
        series = series * square + c
    relative_offset = (x - large) / large
    log_of_large = (
        0.5 * torch.log(large / (2 * math.pi))
        - large * (relative_offset - torch.log1p(relative_offset))
        - series / large
    )
    return torch.exp(torch.where(a < _LARGE, a * x.log() - x - torch.lgamma(a), log_of_large))


def _incomplete_gamma(upper: bool) -> Callable[..., Any]:
    def function(a: Tensor, x: Tensor) -> Any:
        dtype = torch.result_type(a, x)
        if not dtype.is_floating_point:
            return NotImplemented
        a, x = torch.broadcast_tensors(a.double(), x.double())  # type: ignore[no-untyped-call]
        is_regular = (a > 0) & (x > 0) & a.isfinite() & x.isfinite()
        share = _lower_and_upper(*(torch.where(is_regular, y, 1.0) for y in (a, x)))[upper]
        at_zero, at_infinity = (1.0, 0.0) if upper else (0.0, 1.0)  # the shares of the whole integral
        is_nan = (a < 0) | (x < 0) | ((a == 0) & (x > 0).logical_not()) | (a.isinf() & x.isinf())
        limit = torch.where(
            a == 0,
            at_infinity,
            torch.where((x == 0) | a.isinf(), at_zero, torch.where(x.isinf(), at_infinity, math.nan)),
        )
        return torch.where(is_regular, share, torch.where(is_nan, math.nan, limit)).to(dtype)

    return function


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "igamma.default": _incomplete_gamma(False),
    "igammac.default": _incomplete_gamma(True),
}
