"""Symbolic execution of one path through a kernel's machine code, for one thread: find contradictory branches.

A value is a 32-bit constant, or a symbol plus one; a condition compares two values. Anything not understood is a new
symbol, so a path that is reported as impossible really is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.runtime.sass_code import Instruction, numbers

Value = tuple[int, int]  # a symbol (0 for none), and the constant added to it
_MODULUS = 1 << 32

_NEGATIONS = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": int.__eq__, "NE": int.__ne__, "LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__,
}  # fmt: skip
_COMPARISON = re.compile(r"U?ISETP\.(EQ|NE|LT|LE|GT|GE)(\.U32)?\.AND")
_SUM = re.compile(r"U?MOV|VIADD|U?IADD3|U?IMAD(?:\.MOV|\.IADD|\.U32)*")
_CONSTANT = re.compile(r"-?0x[0-9a-f]+|U?RZ")
_REGISTER = re.compile(r"U?R\d+")
_PREDICATE = re.compile(r"U?P\d")

_symbols = itertools.count(1)


@dataclass(frozen=True)
class Condition:
    """`left` `comparison` `right`, where `comparison` is EQ, NE, LT, LE, GT or GE."""

    comparison: str
    left: Value
    right: Value
    signed: bool = False

    def negated(self) -> Condition:
        return Condition(_NEGATIONS[self.comparison], self.left, self.right, self.signed)


@dataclass
class Path:
    """Known values of registers and predicates, and the conditions of the branches taken."""

    values: dict[str, Value] = field(default_factory=dict)
    predicates: dict[str, Condition] = field(default_factory=dict)
    conditions: frozenset[Condition] = frozenset()

    def copy(self) -> Path:
        return Path(dict(self.values), dict(self.predicates), self.conditions)


def branch(path: Path, x: Instruction, taken: bool) -> bool:
    """Record whether a branch or exit is taken; return whether that is possible. Nothing is known of `.ANY` branches,
    which all threads take if one wants to."""
    if not x.guard or ".ANY" in x.opcode or len(x.operands) > 1:
        return True
    condition = path.predicates.setdefault(x.guard.lstrip("!"), Condition("NE", _new_symbol(), (0, 0)))
    path.conditions |= {condition.negated() if taken == x.guard.startswith("!") else condition}
    return _is_satisfiable(path.conditions)


def step(path: Path, x: Instruction, writes: int) -> None:
    """Execute an instruction that writes these registers, and possibly uniform registers (shared by a warp)."""
    condition, value = (None, None) if x.guard else (_comparison(path, x), _sum(path, x))
    if condition is not None:
        path.predicates[x.operands[0]] = condition
    elif value is not None:
        path.values[x.operands[0]] = value
    elif x.name in ("CALL", "R2P"):
        path.values, path.predicates = {}, {}
    else:
        for o in x.operands[:3]:
            path.predicates.pop(o, None)
        uniform = [int(o[2:]) + n for o in x.operands[:2] if re.fullmatch(r"UR\d+", o) for n in range(4)]
        for name in (*(f"R{n}" for n in numbers(writes)), *(f"UR{n}" for n in uniform)):
            path.values.pop(name, None)


def _new_symbol() -> Value:
    return next(_symbols), 0


def _value(path: Path, operand: str) -> Value:
    name = operand.removesuffix(".reuse")
    if _CONSTANT.fullmatch(name):
        return 0, 0 if name.endswith("RZ") else int(name, 16) % _MODULUS
    return path.values.setdefault(name, _new_symbol()) if _REGISTER.fullmatch(name) else _new_symbol()


def _comparison(path: Path, x: Instruction) -> Condition | None:
    """The condition set by `ISETP.GE.U32.AND P0, PT, R2, 0x9, PT`, or by a copy of a predicate; None for others."""
    match x.operands:
        case (_, "PT" | "UPT", left, right, "PT" | "UPT") if match := _COMPARISON.fullmatch(x.opcode):
            return Condition(match[1], _value(path, left), _value(path, right), not match[2])
        case (_, "PT", "PT", "PT", copied, "0x80", _) if x.opcode == "PLOP3.LUT" and _PREDICATE.fullmatch(copied):
            return path.predicates.setdefault(copied, Condition("NE", _new_symbol(), (0, 0)))
    return None


def _sum(path: Path, x: Instruction) -> Value | None:
    if not _SUM.fullmatch(x.opcode) or any(re.fullmatch(r"!?U?P[\dT]", o) for o in x.operands):
        return None
    values = [_value(path, o) for o in x.operands[1:]]
    if "IMAD" in x.name:
        a, b, c = values
        if not {(0, 0), (0, 1)} & {a, b}:
            return None
        values = [c] if (0, 0) in (a, b) else [b if a == (0, 1) else a, c]
    symbols = [s for s, _ in values if s]
    return (symbols[0] if symbols else 0, sum(n for _, n in values) % _MODULUS) if len(symbols) < 2 else None


# ---- satisfiability of conditions


def _is_satisfiable(conditions: frozenset[Condition]) -> bool:
    if any(c.negated() in conditions for c in conditions):
        return False
    by_symbol: dict[int, list[Condition]] = {}
    for c in conditions:
        (a, _), (b, _) = c.left, c.right
        if not (a and b):
            by_symbol.setdefault(a or b, []).append(c)
    return all(_has_solution(symbol, symbol_conditions) for symbol, symbol_conditions in by_symbol.items())


def _has_solution(symbol: int, conditions: Sequence[Condition]) -> bool:
    """Whether some number satisfies all conditions on a symbol. Each condition against a constant bounds an arc of
    numbers, and an intersection of arcs contains the start of one of them."""
    candidates = {0, _MODULUS // 2}
    for c in conditions:
        for (s, n), (_, bound) in ((c.left, c.right), (c.right, c.left)):
            if s == symbol:
                candidates |= {(y - n) % _MODULUS for y in (bound, bound + 1, 0, _MODULUS // 2)}
    return any(all(_holds(c, y) for c in conditions) for y in candidates)


def _holds(c: Condition, number: int) -> bool:
    left, right = ((n + (number if s else 0)) % _MODULUS for s, n in (c.left, c.right))
    if c.signed:
        left, right = ((n + _MODULUS // 2) % _MODULUS for n in (left, right))
    return _COMPARE[c.comparison](left, right)
