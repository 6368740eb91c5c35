"""Replace Python kernels that torch applies during tracing, whatever decompositions it is given.

One of these decomposes resizing into sums at positions computed in floating point, with an index per element. The rules
for resizing ops know the positions as fractions of integers instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._C import DispatchKey

from compiler.passes.torch_to_tensor.lower import RULES

Formula = Callable[..., Any]
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_RESIZING = tuple(name for name in RULES if name.startswith(("aten.upsample_", "aten._upsample_")))
_NEAREST = tuple(name for name in _RESIZING if "nearest" in name and "backward" not in name)


@contextlib.contextmanager
def replaced_kernels(formulas: Mapping[Any, Mapping[DispatchKey, Formula | None]]) -> Iterator[None]:
    """While entered, overloads are traced by these formulas, or kept as they are if the formula is None."""
    saved = {op: {key: op.py_kernels.get(key) for key in by_key} for op, by_key in formulas.items()}
    _install(formulas)
    try:
        yield
    finally:
        _install(saved)


def _install(formulas: Mapping[Any, Mapping[DispatchKey, Formula | None]]) -> None:
    for op, by_key in formulas.items():
        for key, formula in by_key.items():
            if formula is not None:
                op.py_kernels[key] = formula
            else:
                op.py_kernels.pop(key, None)
        op._dispatch_cache.clear()


def resizing_as_one_op(inputs: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """While entered, resizing and its gradients are traced as single ops, which have rules, if the sizes are known."""
    if any(isinstance(x, torch.SymInt) for x in inputs):
        return contextlib.nullcontext()
    formulas: dict[Any, dict[DispatchKey, Formula | None]] = {
        op: {key: None for key in _KEYS if key in op.py_kernels} for op in map(_overload, _RESIZING) if op is not None
    }
    for op in map(_overload, _NEAREST):
        if op is not None and DispatchKey.Meta in op.py_kernels:
            formulas[op][DispatchKey.Meta] = _for_empty_batches(op.py_kernels[DispatchKey.Meta])
    return replaced_kernels(formulas)


def _for_empty_batches(shape_function: Formula) -> Formula:
    """torch's shape function of resizing by nearest neighbours (2.11 to 2.13) raises for no images, eager does not."""

    def formula(x: torch.Tensor, output_size: Sequence[int], *args: Any, **kwargs: Any) -> torch.Tensor:
        if x.shape[0] == 0 and 0 not in x.shape[1:]:
            return x.new_empty((*x.shape[:2], *output_size))
        result: torch.Tensor = shape_function(x, output_size, *args, **kwargs)
        return result

    return formula


def _overload(name: str) -> Any:
    """The op of this name; None if this version of torch lacks it."""
    try:
        return attrgetter(name.removeprefix("aten."))(torch.ops.aten)
    except AttributeError:
        return None
