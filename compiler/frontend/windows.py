"""Window functions by their formulas.

Source: the documentation of `torch.hann_window` and related functions. A periodic window is a symmetric one with one
more sample, which is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Formula = Callable[..., torch.Tensor]


def _hamming(place: torch.Tensor, alpha: float = 0.54, beta: float = 0.46) -> torch.Tensor:
    return alpha - beta * torch.cos(2 * math.pi * place)


def _blackman(place: torch.Tensor) -> torch.Tensor:
    return 0.42 - 0.5 * torch.cos(2 * math.pi * place) + 0.08 * torch.cos(4 * math.pi * place)


def _bartlett(place: torch.Tensor) -> torch.Tensor:
    return 1 - (2 * place - 1).abs()


def _kaiser(place: torch.Tensor, beta: float = 12.0) -> torch.Tensor:
    middle = torch.full((), beta, dtype=place.dtype, device=place.device)
    made: torch.Tensor = torch.special.i0(beta * torch.sqrt(4 * place * (1 - place))) / torch.special.i0(middle)
    return made


def _window(formula: Formula) -> Callable[..., Any]:
    """A window function from the formula for the weight at a position from 0 to 1."""

    def made(
        window_length: int, periodic: bool = True, *shape: float, dtype: torch.dtype | None = None,
        layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None,
        **named: float,
    ) -> torch.Tensor:  # fmt: skip
        del layout, pin_memory
        kind = dtype or torch.get_default_dtype()
        exact = kind if kind is torch.float64 else torch.float32
        if window_length < 2:
            return torch.ones(window_length, dtype=kind, device=device)
        samples = torch.arange(window_length, dtype=exact, device=device)
        return formula(samples / (window_length if periodic else window_length - 1), *shape, **named).to(kind)

    return made


_FORMULAS: dict[str, tuple[Formula, tuple[str, ...]]] = {
    "hann_window": (lambda place: _hamming(place, 0.5, 0.5), ("default", "periodic")),
    "hamming_window": (_hamming, ("default", "periodic", "periodic_alpha", "periodic_alpha_beta")),
    "blackman_window": (_blackman, ("default", "periodic")),
    "bartlett_window": (_bartlett, ("default", "periodic")),
    "kaiser_window": (_kaiser, ("default", "periodic", "beta")),
}
DEFINITIONS: dict[str, Callable[..., Any]] = {
    f"{name}.{overload}": _window(formula) for name, (formula, every) in _FORMULAS.items() for overload in every
}
