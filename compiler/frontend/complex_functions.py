"""Functions of complex numbers as formulas of the real and imaginary parts, written to avoid cancellation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Parts = tuple[Tensor, Tensor]


def exp(re: Tensor, im: Tensor) -> Parts:
    magnitude = torch.exp(re)
    return magnitude * torch.cos(im), magnitude * torch.sin(im)


def _expm1(re: Tensor, im: Tensor) -> Parts:
    half = torch.sin(im / 2)
    return torch.expm1(re) * torch.cos(im) - 2 * half * half, torch.exp(re) * torch.sin(im)


def log(re: Tensor, im: Tensor) -> Parts:
    a, b = torch.maximum(re.abs(), im.abs()), torch.minimum(re.abs(), im.abs())
    magnitude = torch.hypot(re, im)
    near_one = 0.5 * torch.log1p((a - 1) * (a + 1) + b * b)
    return torch.where((magnitude > 0.5) & (magnitude < 2), near_one, torch.log(magnitude)), torch.atan2(im, re)


def _log1p(re: Tensor, im: Tensor) -> Parts:
    magnitude = torch.hypot(re + 1, im)
    near_one = 0.5 * torch.log1p(re * (re + 2) + im * im)
    return torch.where((magnitude > 0.5) & (magnitude < 2), near_one, torch.log(magnitude)), torch.atan2(im, re + 1)


def _log_of_base(base: float) -> Callable[[Tensor, Tensor], Parts]:
    def function(re: Tensor, im: Tensor) -> Parts:
        real, imaginary = log(re, im)
        return real / math.log(base), imaginary / math.log(base)

    return function


def sqrt(re: Tensor, im: Tensor) -> Parts:
    large = torch.sqrt((torch.hypot(re, im) + re.abs()) / 2)
    small = torch.where(large == 0, 0, im.abs() / (2 * large))
    return torch.where(re >= 0, large, small), torch.copysign(torch.where(re >= 0, small, large), im)


def _sinh(re: Tensor, im: Tensor) -> Parts:
    return torch.sinh(re) * torch.cos(im), torch.cosh(re) * torch.sin(im)


def _cosh(re: Tensor, im: Tensor) -> Parts:
    return torch.cosh(re) * torch.cos(im), torch.sinh(re) * torch.sin(im)


def _tanh(re: Tensor, im: Tensor) -> Parts:
    """Numerator and denominator are scaled by e^(-2|re|) <= 1 to avoid overflow."""
    magnitude = re.abs()
    decay, sine, cosine = torch.exp(-2 * magnitude), torch.sin(im), torch.cos(im)
    denominator = torch.expm1(-2 * magnitude) ** 2 + 4 * decay * cosine * cosine
    return torch.copysign(-torch.expm1(-4 * magnitude), re) / denominator, 4 * decay * sine * cosine / denominator


def _rotate_argument(function: Callable[[Tensor, Tensor], Parts]) -> Callable[[Tensor, Tensor], Parts]:
    """The function z -> -i f(i z)."""

    def rotated(re: Tensor, im: Tensor) -> Parts:
        real, imaginary = function(-im, re)
        return imaginary, -real

    return rotated


def _atanh(re: Tensor, im: Tensor) -> Parts:
    up, down = _log1p(re, im), _log1p(-re, -im)
    return (up[0] - down[0]) / 2, (up[1] - down[1]) / 2


# Keyed by the name of the op.
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Parts]] = {
    "exp": exp, "expm1": _expm1, "log": log, "log1p": _log1p, "log2": _log_of_base(2), "log10": _log_of_base(10),
    "sqrt": sqrt,
    "sinh": _sinh, "cosh": _cosh, "tanh": _tanh, "atanh": _atanh, "sin": _rotate_argument(_sinh),
    "tan": _rotate_argument(_tanh),
    "atan": _rotate_argument(_atanh), "cos": lambda re, im: _cosh(-im, re),
}  # fmt: skip
