"""Integers of a kernel of threads in 32 bits: a function goes in, what its integer variables may be comes out.

Kernel IR counts in 64 bits, a GPU in 32: there every wider operation is several. An index is written with 32-bit
operations as far as its operands and its own value certainly fit, so that nothing overflows on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compiler.ir import kernel as k
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Var, substitute
from compiler.ir.index import Range, value_range

MOST_BLOCKS = 2**31 - 1  # along the first axis of a grid, on every capability


def fits(r: Range) -> bool:
    """Every value of the range is one of a 32-bit integer."""
    low, high = r
    return low is not None and high is not None and low >= -(2**31) and high < 2**31


def ranges_of(f: k.Function) -> dict[str, Range]:
    """The ranges of a function's integer variables, and of what the hardware counts by its name; others are unknown."""
    known = {f"thread.{a}": (0, n - 1) for a, n in zip("xyz", f.block, strict=False)}
    out: dict[str, Range] = {**known, **{f"block.{a}": _block(n) for a, n in zip("xyz", f.grid, strict=False)}}
    changed = {n.name for s in f.body for n in s.walk() if isinstance(n, k.Assign)}
    _collect(f.body, out, changed)
    return out


def narrow(ranges: Mapping[str, Range]) -> frozenset[str]:
    """The names that 32 bits hold."""
    return frozenset(name for name, r in ranges.items() if fits(r))


def _block(extent: Expr) -> Range:
    return 0, int(extent.value) - 1 if isinstance(extent, Const) else MOST_BLOCKS - 1


def _collect(body: Iterable[k.Stmt], out: dict[str, Range], changed: set[str]) -> None:
    for s in body:
        match s:
            case k.Declare(name, value) if value.dtype is i64:
                _add(out, name, (None, None) if name in changed else range_in(value, out))
            case k.For(var, start, stop, step, inner):
                # The last step goes beyond the end.
                _add(out, var, (range_in(start, out)[0], _plus(range_in(stop, out)[1], step - 1)))
                _collect(inner, out, changed)
            case k.If(_, then, orelse):
                _collect(then, out, changed)
                _collect(orelse, out, changed)


def _plus(high: int | None, more: int) -> int | None:
    return None if high is None else high + more


def _add(out: dict[str, Range], name: str, r: Range) -> None:
    """A name that is bound twice is either."""
    if name in out:
        (a, b), (c, d) = out[name], r
        r = (None if a is None or c is None else min(a, c)), (None if b is None or d is None else max(b, d))
    out[name] = r


def range_in(e: Expr, ranges: Mapping[str, Range]) -> Range:
    """Bounds of an integer expression of Kernel IR."""
    builtins = {n: Var(n.name) for n in e.walk() if isinstance(n, k.Builtin)}
    return value_range(substitute(e, builtins) if builtins else e, ranges)
