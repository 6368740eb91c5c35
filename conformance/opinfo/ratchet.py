"""The lists of entries that have passed before and must pass again: a line per entry with its dtypes.

There is a list for each kind of target, in the package of the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

Passed = frozenset[tuple[str, str]]  # pairs of name and dtype


def path(database: str, kind: str) -> Path:
    """Return the path of the list for a kind of target."""
    return Path(__file__).parents[1] / database / f"passed-{kind}.txt"


def read(text: str) -> Passed:
    """Parse a list.

    >>> sorted(read("abs bf16 f32\\n"))
    [('abs', 'bf16'), ('abs', 'f32')]
    """
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return frozenset((name, dtype) for name, *dtypes in lines for dtype in dtypes)


def show(passed: Iterable[tuple[str, str]]) -> str:
    """Format a list, sorted.

    >>> print(show([("sin", "f32"), ("abs", "f32"), ("abs", "bf16")]))
    abs bf16 f32
    sin f32
    <BLANKLINE>
    """
    types: dict[str, list[str]] = {}
    for name, dtype in sorted(passed):
        types.setdefault(name, []).append(dtype)
    return "".join(f"{name} {' '.join(dtypes)}\n" for name, dtypes in types.items())


def passed_before(database: str, kind: str) -> Passed:
    """Return the entries that have passed before."""
    file = path(database, kind)
    return read(file.read_text(encoding="utf-8")) if file.exists() else frozenset()
