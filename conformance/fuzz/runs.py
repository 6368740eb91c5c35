"""Run a function and record its results, its inputs afterwards and gradients; optionally in f64, for the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.shapes.inputs import clone_storage


@dataclass(frozen=True)
class Run:
    """The effects of one call; `gradients` has None for an input that does not influence the results."""

    outputs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...] = ()


def call(function: Callable[..., Any], arguments: Sequence[Any], needs: Sequence[bool]) -> Run:
    """Call the function on these arguments, not copies, and run backward if any needs a gradient."""
    prepared = [x.requires_grad_() if need else x for x, need in zip(arguments, needs, strict=True)]
    leaves = [x for x, need in zip(prepared, needs, strict=True) if need]
    with torch.set_grad_enabled(bool(leaves)):
        outputs = tuple(pytree.tree_leaves(function(*prepared)))
    gradients: tuple[Tensor | None, ...] = (None,) * len(leaves)
    differentiable = [x for x in outputs if x.requires_grad]
    if differentiable and leaves:
        gradients = torch.autograd.grad(differentiable, leaves, [weights(x) for x in differentiable], allow_unused=True)
    inputs = tuple(x.detach() for x in prepared if isinstance(x, Tensor))
    return Run(tuple(x.detach() for x in outputs), inputs, gradients)


def weights(x: Tensor) -> Tensor:
    """Return the gradient with respect to a result: integers from -2 to 2."""
    return ((torch.arange(x.numel(), device=x.device) * 7 % 5) - 2).to(x.dtype).reshape(x.shape)


def copy_arguments(arguments: Sequence[Any], device: str = "cpu") -> list[Any]:
    """Copy tensors with new storages and the same strides, gaps and offsets; numbers are unchanged."""
    return [clone_storage(x.detach(), device=device) if isinstance(x, Tensor) else x for x in arguments]


FLOATING = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


class WideDtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces floating-point dtypes in the arguments of calls by f64."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map(_widen_dtype, (args, kwargs or {}))
        return func(*args, **kwargs)


class ContiguousOperands(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes contiguous copies of tensors to calls that neither return views nor write to their arguments.

    Values do not change, unless a kernel of PyTorch reads other elements than its operand's (`median` does on the CPU
    if an operand is expanded), or the program looks at strides by `as_strided`, which sets `uses_strides`.
    """

    uses_strides = False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert isinstance(func, OpOverload)
        self.uses_strides |= func is torch.ops.aten.as_strided.default
        if all(argument.alias_info is None for argument in func._schema.arguments):
            args, kwargs = pytree.tree_map_only(Tensor, Tensor.contiguous, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _widen_dtype(x: object) -> object:
    return torch.float64 if isinstance(x, torch.dtype) and x in FLOATING else x


@contextmanager
def in_f64() -> Iterator[None]:
    """Compute everything within in f64, if the tensors are `widen`."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with WideDtypes():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(previous)


def widen(x: Tensor) -> Tensor:
    """Copy a tensor with its storage layout, in f64 if it is floating-point."""
    return clone_storage(x.detach(), dtype=torch.float64) if x.is_floating_point() else clone_storage(x)


def perturb(x: Any) -> Any:
    """Return a `widen` tensor; f64 tensors are perturbed by up to four roundings.

    There is no wider dtype for the reference of an f64 program, so the effect of this perturbation on a result is used
    as its tolerance. Integers are not perturbed, so that functions that are discontinuous there do not jump, and equal
    elements, or those of equal size, are perturbed equally, so that the first of several maxima stays the first.
    """
    if not isinstance(x, Tensor):
        return x
    wide = widen(x)
    if x.dtype is torch.float64:
        memory = torch.empty(0, dtype=torch.float64).set_(wide.untyped_storage())  # elements may overlap
        sizes, positions = torch.unique(memory.abs(), return_inverse=True)
        factors = 1 + 2**-50 * (2 * torch.rand_like(sizes) - 1)
        memory.copy_(torch.where(memory == memory.round(), memory, memory * factors[positions]))
    return wide
