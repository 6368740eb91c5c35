"""A row: the function that makes an op's calls, and what it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor


@dataclass(frozen=True)
class Row:
    """`function` takes the inputs in order, None for those left out, and the attributes that it `accepts` by name.

    Inputs at the positions `known` must be there when compiling: they are Python's numbers, or tensors `as_they_are`.
    What is `static` depends on types alone. A row of control flow wants the `scope` around it, one of several results
    may ask which `outputs` are wanted.
    """

    function: Callable[..., Any]
    known: tuple[int, ...] = ()
    accepts: frozenset[str] = frozenset()
    static: bool = False
    as_they_are: bool = False


def row(function: Callable[..., Any], *known: int, static: bool = False, as_they_are: bool = False) -> Row:
    """The row of a function; attributes are its parameters by name only."""
    parameters = inspect.signature(function).parameters.values()
    names = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    return Row(function, known, names, static, as_they_are)


def plain(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Row]:
    """Rows of functions that take no attribute, of which some are torch's own, without a signature."""
    return {name: Row(f) for name, f in functions.items()}


def is_known(value: Any) -> bool:
    """Whether a value is there when compiling."""
    if isinstance(value, list):
        return all(map(is_known, value))
    return not isinstance(value, FakeTensor)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    >>> axis_of(-1, 3)
    2
    """
    return axis % rank if rank else 0
