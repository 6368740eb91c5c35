"""What torch does by definitions of its own in Python while it traces, whatever decompositions it is given.

Resizing is decomposed so into sums at positions that are computed in floating point and looked up element by element;
the rules for these ops know the positions as fractions of integers.
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


@contextlib.contextmanager
def replaced(formulas: Mapping[Any, Mapping[DispatchKey, Formula | None]]) -> Iterator[None]:
    """While this is entered, overloads are traced by these formulas, or as they are where there is None."""
    before = {op: {key: op.py_kernels.get(key) for key in own} for op, own in formulas.items()}
    _set(formulas)
    try:
        yield
    finally:
        _set(before)


def _set(formulas: Mapping[Any, Mapping[DispatchKey, Formula | None]]) -> None:
    for op, own in formulas.items():
        for key, formula in own.items():
            if formula is not None:
                op.py_kernels[key] = formula
            else:
                op.py_kernels.pop(key, None)
        op._dispatch_cache.clear()


def whole_resizing(inputs: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Resizing, and its gradients, are traced as the ops that have rules, in a graph of known sizes."""
    if any(isinstance(x, torch.SymInt) for x in inputs):
        return contextlib.nullcontext()
    overloads = [op for op in map(_overload, _RESIZING) if op is not None]
    return replaced({op: {key: None for key in _KEYS if key in op.py_kernels} for op in overloads})


def _overload(name: str) -> Any:
    """The op of this name, if this version of torch has it."""
    try:
        return attrgetter(name.removeprefix("aten."))(torch.ops.aten)
    except AttributeError:
        return None
