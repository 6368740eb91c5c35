"""A function and its arguments in; what a call of it leaves behind out: results, its inputs afterwards, gradients.

The same in f64 as well, for what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.shapes.inputs import clone_storage


@dataclass(frozen=True)
class Run:
    """Everything that one call gave; `gradients` has None for an input that none reaches."""

    outputs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...] = ()


def call(function: Callable[..., Any], arguments: Sequence[Any], needs: Sequence[bool]) -> Run:
    """Call the function on these very arguments, of which some need gradients, and go backward if any does."""
    given = [x.requires_grad_() if need else x for x, need in zip(arguments, needs, strict=True)]
    leaves = [x for x, need in zip(given, needs, strict=True) if need]
    with torch.set_grad_enabled(bool(leaves)):
        outputs = tuple(pytree.tree_leaves(function(*given)))
    gradients: tuple[Tensor | None, ...] = ()
    ends = [x for x in outputs if x.requires_grad]
    if ends and leaves:
        gradients = torch.autograd.grad(ends, leaves, [weights(x) for x in ends], allow_unused=True)
    inputs = tuple(x.detach() for x in given if isinstance(x, Tensor))
    return Run(tuple(x.detach() for x in outputs), inputs, gradients)


def weights(x: Tensor) -> Tensor:
    """Whole numbers from -2 to 2, by which the elements of a result count in what is differentiated."""
    return ((torch.arange(x.numel(), device=x.device) * 7 % 5) - 2).to(x.dtype).reshape(x.shape)


def copied(arguments: Sequence[Any], device: str = "cpu") -> list[Any]:
    """Tensors with storages of their own, of the same strides, gaps and offsets; numbers as they are."""
    return [clone_storage(x.detach(), device=device) if isinstance(x, Tensor) else x for x in arguments]


FLOATING = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


class Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Types that calls ask for, made f64 if they are floating."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map(_wider, (args, kwargs or {}))
        return func(*args, **kwargs)


def _wider(x: object) -> object:
    return torch.float64 if isinstance(x, torch.dtype) and x in FLOATING else x


@contextmanager
def in_f64() -> Iterator[None]:
    """What runs within is computed in f64, given `widened` tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Wide():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)


def widened(x: Tensor) -> Tensor:
    """A copy of the storage, in f64 where it is floating."""
    return clone_storage(x.detach(), dtype=torch.float64) if x.is_floating_point() else clone_storage(x)


def nearby(x: Any) -> Any:
    """What `widened` gives of a tensor; what is in f64 already is off by up to four roundings.

    There is nothing wider to compute a reference of f64 in: how far such numbers take a result is how far it may be
    off. Whole numbers stay, so that what jumps at them does not.
    """
    if not isinstance(x, Tensor):
        return x
    wide = widened(x)
    if x.dtype is torch.float64:
        memory = torch.empty(0, dtype=torch.float64).set_(wide.untyped_storage())  # elements may lie there twice
        moved = memory * (1 + 2**-50 * (2 * torch.rand_like(memory) - 1))
        memory.copy_(torch.where(memory == memory.round(), memory, moved))
    return wide
