"""Ranges of the integer variables of a kernel, to decide what fits 32 bits.

Kernel IR counts in 64 bits, a GPU in 32: a 64-bit operation takes several instructions. Indices use 32-bit operations
as far as the operands and the value certainly fit, so that no intermediate result overflows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from compiler.ir import kernel as k
from compiler.ir.dtype import i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, substitute
from compiler.ir.ranges import Range, either
from compiler.ir.value_ranges import conjuncts, value_range

WARP = 32
MOST_ROUNDS = 16  # iterations after which a counter that still grows is given up
MOST_BLOCKS = 2**31 - 1  # along the first axis of a grid, for every compute capability


def fits_int32(r: Range) -> bool:
    """Whether a 32-bit integer holds every value of the range."""
    low, high = r
    return low is not None and high is not None and low >= -(2**31) and high < 2**31


def is_bounded(r: Range) -> bool:
    """Whether both ends are known, so that 64 bits hold every value."""
    return None not in r


def ranges_of(f: k.Function) -> dict[str, Range]:
    """The ranges of a function's integer variables, and of the hardware's counters by name; others are unknown."""
    builtin_ranges = {f"thread.{a}": (0, n - 1) for a, n in zip("xyz", f.block, strict=False)}
    builtin_ranges |= {"thread.lane": (0, WARP - 1), "thread.warp": (0, max(1, math.prod(f.block) // WARP) - 1)}
    out: dict[str, Range] = {
        **builtin_ranges,
        **{f"block.{a}": _block_range(n) for a, n in zip("xyz", f.grid, strict=False)},
    }
    assigned: dict[str, list[Expr]] = {}
    for s in f.body:
        for n in s.walk():
            if isinstance(n, k.Assign):
                assigned.setdefault(n.name, []).append(n.value)
    _collect(f.body, out, assigned)
    return out


def data_variables(f: k.Function) -> frozenset[str]:
    """The 64-bit variables that hold data, which may wrap around, rather than indices, which are far below 2**63."""
    values = [(n.name, n.value) for s in f.body for n in s.walk() if isinstance(n, k.Declare | k.Assign)]
    values = [(name, value) for name, value in values if value.dtype is i64]
    data: frozenset[str] = frozenset()
    while added := {name for name, value in values if name not in data and is_data(value, data)}:
        data |= added
    return data


def is_data(e: Expr, names: frozenset[str]) -> bool:
    """Whether an expression depends on an element of a tensor, a variable of these names, or a constant beyond 32 bits,
    which no index is multiplied by; except values required to be an index."""
    match e:
        case Const(value):
            return not fits_int32((int(value), int(value)))
        case Load() | k.Peer() | k.Together() | Cast():
            return True
        case Var(name):
            return name in names
        case Op("require", (cond, _)) if _is_bounds_check(cond):
            return False
    return any(is_data(a, names) for a in e.children() if isinstance(a, Expr))


def _is_bounds_check(cond: Expr) -> bool:
    return any(isinstance(c, Op) and c.name == "lt" for c in conjuncts(cond))


def int32_names(ranges: Mapping[str, Range]) -> frozenset[str]:
    """The names whose range fits 32 bits."""
    return frozenset(name for name, r in ranges.items() if fits_int32(r))


def _block_range(extent: Expr) -> Range:
    return 0, int(extent.value) - 1 if isinstance(extent, Const) else MOST_BLOCKS - 1


def _collect(body: Iterable[k.Stmt], out: dict[str, Range], assigned: Mapping[str, list[Expr]]) -> None:
    for s in body:
        match s:
            case k.Declare(name, value) if value.dtype is i64:
                _add_range(out, name, _fixed_point(name, range_in(value, out), assigned.get(name, []), out))
            case k.For(var, start, stop, step, inner):
                # The last increment goes beyond the end.
                _add_range(out, var, (range_in(start, out)[0], _shift_bound(range_in(stop, out)[1], step - 1)))
                _collect(inner, out, assigned)
            case k.If(_, then, orelse):
                _collect(then, out, assigned)
                _collect(orelse, out, assigned)


def _fixed_point(name: str, first: Range, values: list[Expr], ranges: Mapping[str, Range]) -> Range:
    """The range of a variable that starts in `first` and is assigned these values: a fixed point, or unknown."""
    current = first
    for _ in range(MOST_ROUNDS):
        union = current
        for value in values:
            union = either(union, _assigned_range(value, name, current, ranges))
        if union == current:
            return current
        current = union
    return None, None


def _assigned_range(value: Expr, name: str, current: Range, ranges: Mapping[str, Range]) -> Range:
    """The range of a value, which may be a counter compared with its end."""
    match value:
        case Select(Op("lt", (Var(var), Const(int() as end))), then, other) if var == name and current[0] is not None:
            low = current[0], end - 1 if current[1] is None else min(end - 1, current[1])
            return either(range_in(then, {**ranges, name: low}), range_in(other, {**ranges, name: current}))
    return range_in(value, {**ranges, name: current})


def _shift_bound(high: int | None, increment: int) -> int | None:
    return None if high is None else high + increment


def _add_range(out: dict[str, Range], name: str, r: Range) -> None:
    """Add a range; a name that is bound twice gets the union."""
    out[name] = either(out[name], r) if name in out else r


def range_in(e: Expr, ranges: Mapping[str, Range]) -> Range:
    """Bounds of an integer expression of Kernel IR."""
    builtins = {n: Var(n.name) for n in e.walk() if isinstance(n, k.Builtin)}
    return value_range(substitute(e, builtins) if builtins else e, ranges)
