"""Replace numbers in the texts of calls by names, which become arguments of the program."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable

from conformance.fuzz.program import Number


def replace_number(text: str, name: str, rng: random.Random) -> tuple[str, Number] | None:
    """Replace a random number in the text by the name; returns the text and the number, or None if it has none.

    >>> replace_number("torch.clamp(x0, -1.5, max='2')", "k0", random.Random(0))
    ("torch.clamp(x0, -k0, max='2')", 1.5)
    """
    constants = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    if not constants:
        return None
    chosen = rng.choice(constants)
    value = chosen.value
    assert isinstance(value, int | float)
    return f"{text[: chosen.col_offset]}{name}{text[chosen.end_col_offset :]}", value


def substitute_number(text: str, name: str, value: Number) -> str:
    """Return the text with the number in place of the name."""
    return re.sub(rf"\b{name}\b", repr(value), text)


def is_used(lines: Iterable[str], name: str) -> bool:
    """Return whether any line contains the name."""
    return any(re.search(rf"\b{name}\b", text) for text in lines)


def later_value(value: Number, call: int) -> Number:
    """Return the number for a later call: integers stay integers, and numbers with few significant bits keep few.

    Others are halved, so that probabilities and the like stay in their range.

    >>> later_value(2, 1), later_value(0.25, 2), later_value(2, 0), later_value(0.0, 1)
    (3, 0.0625, 2, 0.5)
    """
    if isinstance(value, int):
        return value + call
    return value / 2**call if value else call / 2
