"""Remove roundings to 16 bits that change nothing, because 16 bits hold the value exactly (Kernel IR to Kernel IR).

Such values are integers of up to 8 bits, such as those of a quantized weight, and small sums of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from compiler.ir import kernel as k
from compiler.ir.dtype import HALVES, DType
from compiler.ir.expr import Cast, Const, Expr, Op, Var
from compiler.ir.rewrite import nodes

MOST_EXACT = 256  # bf16 and f16 both hold every integer up to this magnitude exactly
_BYTES = {"i8": (-128.0, 127.0), "u8": (0.0, 255.0)}
_HALVES = {d.name for d in HALVES}

Range = tuple[float, float]


def remove_exact_roundings(program: k.Program) -> k.Program:
    """Remove roundings that change nothing:

        q_: f32 = f32(bf16(q[i]))
        y[i] = f32(bf16(q_ - 8.0)) * x[i]

    becomes, if the elements of `q` are bytes,

        q_: f32 = f32(q[i])
        y[i] = (q_ - 8.0) * x[i]
    """
    return program.replace(functions=tuple(map(_function, program.functions)))


def _function(f: k.Function) -> k.Function:
    every = [n for s in f.body for n in s.walk()]
    if not any(isinstance(n, Cast) and n.arg.dtype.name in _BYTES and n.dtype.is_float for n in every):
        return f
    changed = {n.name for n in every if isinstance(n, k.Assign)}
    known: dict[str, Range] = {}
    ranges_of: dict[str, list[Range | None]] = defaultdict(list)
    for s in (
        n
        for n in every
        if isinstance(n, k.Declare)
        and n.name not in changed
        and (n.value.dtype.is_float or n.value.dtype.name in _BYTES)
    ):
        ranges_of[s.name].append(_integer_range(s.value, known))
        found = [r for r in ranges_of[s.name] if r is not None]
        known.pop(s.name, None)
        if len(found) == len(ranges_of[s.name]):
            known[s.name] = min(r[0] for r in found), max(r[1] for r in found)

    def rule(e: Any) -> Expr | None:
        match e:
            case Cast(Cast(arg, half), wide) if half.name in _HALVES and wide.is_float and wide.name not in _HALVES:
                return _cast_to(arg, wide) if _integer_range(arg, known) is not None else None
        return None

    return f.replace(body=nodes(f.body, rule))


def _cast_to(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype is dtype else Cast(value, dtype)


def _integer_range(e: Expr, known: Mapping[str, Range]) -> Range | None:
    """Return the range of an expression whose values are all integers that 16 bits hold exactly; None for others."""
    match e:
        case Expr() if e.dtype.name in _BYTES:
            return _byte_range(e, known)
        case Const(value) if isinstance(value, float) and value.is_integer():
            found: Range | None = (value, value)
        case Var(name):
            found = known.get(name)
        case Cast(arg):
            found = _integer_range(arg, known)
        case Op("add" | "sub" as name, (a, b)):
            left, right = _integer_range(a, known), _integer_range(b, known)
            if left is None or right is None:
                return None
            low, high = right if name == "add" else (-right[1], -right[0])
            found = (left[0] + low, left[1] + high)
        case _:
            return None
    return found if found is not None and found[0] >= -MOST_EXACT and found[1] <= MOST_EXACT else None


def _byte_range(e: Expr, known: Mapping[str, Range]) -> Range:
    match e:
        case Op("and", (_, Const(mask))) if e.dtype.name == "u8":
            return 0.0, float(mask)
        case Var(name) if name in known:
            return known[name]
    return _BYTES[e.dtype.name]
