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


def _both(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P and Q for positive numbers."""
    below_1, above_1 = _by_series(a, x.clamp(max=1.0))
    y = x.clamp(min=1.0)
    lower = y <= a
    found = _integral(a, y, lower) * _front(a, y)
    return (
        torch.where(x < 1, below_1, torch.where(lower, found, 1 - found)),
        torch.where(x < 1, above_1, torch.where(lower, 1 - found, found)),
    )


def _by_series(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P by a series of positive terms, Q by one of terms that are differences."""
    total, term = torch.ones_like(x), torch.ones_like(x)
    rest, power = torch.zeros_like(x), torch.ones_like(x)
    for n in range(1, _TERMS):
        term, power = term * x / (a + n), power * x / -n
        total, rest = total + term, rest + power / (a + n)
    front = a * x.log() - torch.lgamma(a + 1)
    return torch.exp(front - x) * total, -torch.expm1(front) - torch.exp(front) * a * rest


def _integral(a: Tensor, x: Tensor, lower: Tensor) -> Tensor:
    width = 1 / ((x - a).abs() + x.sqrt())
    t = torch.arange(_FIRST, _LAST + 1, dtype=x.dtype, device=x.device) * _STEP
    spread = torch.exp(t - torch.exp(-t))
    a, x, lower = a.unsqueeze(-1), x.unsqueeze(-1), lower.unsqueeze(-1)
    w = width.unsqueeze(-1) * spread
    values = torch.exp(-(x - a).abs() * w - x * _bend(torch.where(lower, -w, w)))
    return (values * spread * (1 + torch.exp(-t))).sum(-1) * width * _STEP


def _bend(w: Tensor) -> Tensor:
    """e^w - 1 - w, near 0 by its series."""
    series = torch.ones_like(w)
    for n in reversed(range(3, 15)):
        series = 1 + series * w / n
    return torch.where(w.abs() < 0.25, series * w * w / 2, torch.expm1(w) - w)


def _front(a: Tensor, x: Tensor) -> Tensor:
    """D. For large a by Stirling's series, as x^a and gamma(a) would overflow or cancel."""
    large = a.clamp(min=_LARGE)
    square, series = 1 / (large * large), torch.zeros_like(a)
    for c in reversed(_STIRLING):
        series = series * square + c
    off = (x - large) / large
    far = 0.5 * torch.log(large / (2 * math.pi)) - large * (off - torch.log1p(off)) - series / large
    return torch.exp(torch.where(a < _LARGE, a * x.log() - x - torch.lgamma(a), far))


def _function(upper: bool) -> Callable[..., Any]:
    def function(a: Tensor, x: Tensor) -> Any:
        kind = torch.result_type(a, x)
        if not kind.is_floating_point:
            return NotImplemented
        a, x = torch.broadcast_tensors(a.double(), x.double())  # type: ignore[no-untyped-call]
        inner = (a > 0) & (x > 0) & a.isfinite() & x.isfinite()
        found = _both(*(torch.where(inner, y, 1.0) for y in (a, x)))[upper]
        none, every = (1.0, 0.0) if upper else (0.0, 1.0)  # the shares of the whole integral
        unknown = (a < 0) | (x < 0) | ((a == 0) & (x > 0).logical_not()) | (a.isinf() & x.isinf())
        edge = torch.where(
            a == 0, every, torch.where((x == 0) | a.isinf(), none, torch.where(x.isinf(), every, math.nan))
        )
        return torch.where(inner, found, torch.where(unknown, math.nan, edge)).to(kind)

    return function


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {"igamma.default": _function(False), "igammac.default": _function(True)}
