"""Quotients and remainders in vector lanes, and addresses made of them.

Where lane 0 is a multiple of the divisor, they are a scalar plus offsets of the lanes known at compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from compiler.ir import dtype as dt
from compiler.ir import kernel as k
from compiler.ir.expr import Const, Expr, Load, Op, Var, const, op
from compiler.ir.linear import Linear, from_linear, linear, plus, times
from compiler.passes.cpu.scope import Lanes


def quotient(e: Op, lanes: Lanes, varies: Callable[[Expr], bool]) -> tuple[Expr, Expr | None] | None:
    """Split a `floordiv` or `mod` by a constant into a scalar and a vector of offsets to add, None for no offsets.

    Returns None if neither all lanes are known to share one quotient, nor the offsets to be the same in every
    iteration.
    """
    arg, divisor = e.args
    var = Var(lanes.var)
    terms, rest = linear(arg)
    coefficient = terms.get(var, 0)
    if not isinstance(divisor, Const) or divisor.value < 1 or not coefficient:
        return None
    if any(varies(atom) for atom in terms if atom is not var):
        return None
    by = int(divisor.value)
    period = gcd(coefficient * lanes.multiple, by, *(c for atom, c in terms.items() if atom is not var))
    kept = rest % period
    last = kept + coefficient * (lanes.width - 1)
    is_shared = 0 <= last < period
    if not is_shared and period != by:
        return None
    first, offsets = (
        op(e.name, from_linear((terms, rest - kept)), divisor),
        k.Ramp(const(kept), coefficient, lanes.width),
    )
    if e.name == "floordiv":
        return first, None if is_shared else op("floordiv", offsets, k.Broadcast(divisor, lanes.width))
    return (first if period != by else const(0)), offsets if is_shared else op(
        "mod", offsets, k.Broadcast(divisor, lanes.width)
    )


def place(flat: Expr, lanes: Lanes, varies: Callable[[Expr], bool]) -> tuple[Expr, Expr] | None:
    """Split an address into a scalar and the offsets of the lanes; None if lanes may be anywhere.

    The only atoms of an address that may vary between lanes are quotients and remainders of the loop variable.
    """
    var = Var(lanes.var)
    terms, rest = linear(flat)
    first: Linear = {}, rest
    stride = 0
    others: list[Expr] = []
    for atom, factor in terms.items():
        part: Expr = atom
        if atom is var:
            stride += factor
        elif varies(atom):
            found = quotient(atom, lanes, varies) if isinstance(atom, Op) and atom.name in ("floordiv", "mod") else None
            if found is None:
                return None
            part, more = found
            if isinstance(more, k.Ramp):
                part, stride = part + more.start, stride + factor * more.step
            elif more is not None:
                others.append(more if factor == 1 else op("mul", more, k.Broadcast(const(factor), lanes.width)))
        first = plus(first, times(linear(part), factor), 1)
    distance: Expr | None = k.Ramp(const(0), stride, lanes.width) if stride or not others else None
    for more in others:
        distance = more if distance is None else op("add", distance, more)
    assert distance is not None
    return from_linear(first), distance


def load_at(buffer: str, first: Expr, distance: Expr, dtype: dt.DType) -> Expr:
    """A load at these offsets from `first`: contiguous, strided, or a general gather."""
    lanes = distance.dtype.lanes
    match distance:
        case k.Ramp(_, 1, _):
            return Load(buffer, (first,), dt.vector(dtype, lanes))
        case k.Ramp():
            return k.Gather(buffer, distance.replace(start=first), dt.vector(dtype, lanes))
    return k.Gather(buffer, k.Broadcast(first, lanes) + distance, dt.vector(dtype, lanes))
