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


def _hamming(position: torch.Tensor, alpha: float = 0.54, beta: float = 0.46) -> torch.Tensor:
    return alpha - beta * torch.cos(2 * math.pi * position)


def _blackman(position: torch.Tensor) -> torch.Tensor:
    return 0.42 - 0.5 * torch.cos(2 * math.pi * position) + 0.08 * torch.cos(4 * math.pi * position)


def _bartlett(position: torch.Tensor) -> torch.Tensor:
    return 1 - (2 * position - 1).abs()


def _kaiser(position: torch.Tensor, beta: float = 12.0) -> torch.Tensor:
    beta_tensor = torch.full((), beta, dtype=position.dtype, device=position.device)
    weights: torch.Tensor = torch.special.i0(beta * torch.sqrt(4 * position * (1 - position))) / torch.special.i0(
        beta_tensor
    )
    return weights


def _window(formula: Formula) -> Callable[..., Any]:
    """A window function from the formula for the weight at a position from 0 to 1."""

    def window(
        window_length: int, periodic: bool = True, *parameters: float, dtype: torch.dtype | None = None,
        layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None,
        **named_parameters: float,
    ) -> torch.Tensor:  # fmt: skip
        del layout, pin_memory
        result_dtype = dtype or torch.get_default_dtype()
        compute_dtype = result_dtype if result_dtype is torch.float64 else torch.float32
        if window_length < 2:
            return torch.ones(window_length, dtype=result_dtype, device=device)
        samples = torch.arange(window_length, dtype=compute_dtype, device=device)
        return formula(
            samples / (window_length if periodic else window_length - 1), *parameters, **named_parameters
        ).to(result_dtype)

    return window


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
