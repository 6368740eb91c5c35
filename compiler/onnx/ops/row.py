"""A row: the function that makes an op's calls, and what it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """`function` takes the inputs in order, None for those left out, and the attributes that it `accepts` by name.

    Inputs at the positions `known` are Python's numbers: they must be there when compiling. A row of control flow wants
    the scope around it; `outputs` says which are wanted.
    """

    function: Callable[..., Any]
    known: tuple[int, ...]
    accepts: frozenset[str]
    wants_scope: bool
    wants_outputs: bool


def row(function: Callable[..., Any], *known: int) -> Row:
    """The row of a function; attributes are its parameters by name only."""
    parameters = inspect.signature(function).parameters.values()
    names = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    asked = {"scope", "outputs"}
    return Row(function, known, names - asked, "scope" in names, "outputs" in names)


def plain(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Row]:
    """Rows of functions that take no attribute, of which some are torch's own, without a signature."""
    return {name: Row(f, (), frozenset(), False, False) for name, f in functions.items()}
