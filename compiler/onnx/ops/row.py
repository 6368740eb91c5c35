"""A row: the function that lowers an ONNX op to torch calls, and its requirements."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor


@dataclass(frozen=True)
class Row:
    """`function` takes the inputs in order, None for omitted ones, and its `attributes` by name.

    Inputs at the positions `constants` must be constant; they are passed as Python numbers, or as tensors if
    `as_tensors`.
    The result of a `static` row depends only on types and shapes. A function may also accept `scope`, the enclosing
    scope for control flow, and `outputs`, a list of which results are used.
    """

    function: Callable[..., Any]
    constants: tuple[int, ...] = ()
    attributes: frozenset[str] = frozenset()
    static: bool = False
    as_tensors: bool = False


def row(function: Callable[..., Any], *constants: int, static: bool = False, as_tensors: bool = False) -> Row:
    """The row of a function; its keyword-only parameters are the attributes."""
    parameters = inspect.signature(function).parameters.values()
    names = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    return Row(function, constants, names, static, as_tensors)


def rows_without_attributes(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Row]:
    """Rows of functions without attributes, including builtins of torch, which have no signature."""
    return {name: Row(f) for name, f in functions.items()}


def is_known(value: Any) -> bool:
    """Whether a value is a compile-time constant."""
    if isinstance(value, list):
        return all(map(is_known, value))
    return not isinstance(value, FakeTensor)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    >>> axis_of(-1, 3)
    2
    """
    return axis % rank if rank else 0
