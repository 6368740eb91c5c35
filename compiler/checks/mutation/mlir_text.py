"""Mutations of MLIR text. Types are kept, so that it still verifies."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from compiler.checks.mutation.tree import Change

# Pattern of an operation or number, its replacement, description.
_TOKENS: tuple[tuple[str, str | Callable[[re.Match[str]], str], str], ...] = (
    (r'"arith\.add([fi])"', r'"arith.sub\1"', "sub instead of add"),
    (r'"arith\.sub([fi])"', r'"arith.add\1"', "add instead of sub"),
    (r'"arith\.mul([fi])"', r'"arith.add\1"', "add instead of mul"),
    (r'"arith\.divf"', '"arith.mulf"', "mul instead of div"),
    (r'"arith\.max(imumf|si|ui)"', r'"arith.min\1"', "min instead of max"),
    (r'"arith\.min(imumf|si|ui)"', r'"arith.max\1"', "max instead of min"),
    (r'"arith\.andi"', '"arith.ori"', "or instead of and"),
    (r'"math\.exp"', '"math.exp2"', "exp2 instead of exp"),
    (r'"math\.rsqrt"', '"math.sqrt"', "sqrt instead of rsqrt"),
    (r"predicate = (\d) ", lambda m: f"predicate = {int(m[1]) ^ 1} ", "another comparison"),
    (r"value = (\d+\.\d+)", lambda m: f"value = {float(m[1]) * 1.25 or 1.0!r}", "constant changed"),
    (r"value = (\d+) :", lambda m: f"value = {int(m[1]) + 1} :", "constant changed"),
)


def changes(source: str) -> list[Change]:
    return [
        Change(_line(source, m.start()), ((description, functools.partial(_replace_match, source, m, new)),))
        for pattern, new, description in _TOKENS
        for m in re.finditer(pattern, source)
    ]


def _line(source: str, position: int) -> str:
    return source.split("\n")[source[:position].count("\n")].strip()[:70]


def _replace_match(source: str, m: re.Match[str], new: str | Callable[[re.Match[str]], str]) -> str:
    return source[: m.start()] + (m.expand(new) if isinstance(new, str) else new(m)) + source[m.end() :]
