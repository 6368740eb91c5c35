"""Functions compiled by the backend, and whether they give what eager gives."""

from collections.abc import Callable
from typing import Any

import torch

from compiler.backend import mlcomp
from compiler.tests.meaning import fresh_seed


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, backend=mlcomp, **options)
    return made


def agree(function: Callable[..., Any], *calls: tuple[Any, ...], seed: int = 0, **options: Any) -> None:
    """Compiled once, the function gives what eager gives for the arguments of each call."""
    own = compiled(function, **options)
    with torch.no_grad():
        for inputs in calls:
            torch.testing.assert_close(
                own(*inputs), function(*inputs), rtol=1e-4, atol=1e-5, msg=lambda text: f"{text}\nseed {seed}"
            )


def seeded() -> int:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return seed
