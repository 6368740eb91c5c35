"""What whole vectors and whole tiles leave over: how much it is, and how it is computed with vectors all the same."""

from __future__ import annotations

import math
from collections.abc import Iterator

from compiler.ir import dtype as dt
from compiler.ir import kernel as k
from compiler.ir.dtype import i32, i64
from compiler.ir.expr import Expr, Op, const, identity, op
from compiler.ir.linear import Linear, from_linear, linear

MASKS: dict[int, dt.DType] = {32: i32, 64: i64}  # by the bits of a lane: what to compare so that the mask is as wide


def remainder(size: Expr, by: int) -> int:
    """What `size` leaves when divided by `by`, where it leaves anything: -1 for what is not known."""
    forms = list(_forms(size))
    if any(c % by for terms, _ in forms for c in terms.values()):
        return -1
    rests = {n % by for _, n in forms} - {0}
    return rests.pop() if len(rests) == 1 else -1 if rests else 0


def unit(size: Expr, most: int) -> int:
    """The largest divisor of `most` that `size` is known to be a multiple of."""
    return math.gcd(most, *(x for terms, remainder in _forms(size) for x in (*terms.values(), remainder)))


def _forms(size: Expr) -> Iterator[Linear]:
    """The sums that `size` may be, where it is one of several: `min(a, b)`, and sums that hold such."""
    if isinstance(size, Op) and size.name == "min":
        for part in size.args:
            yield from _forms(part)
        return
    terms, remainder = linear(size)
    least = next((t for t, c in terms.items() if c == 1 and isinstance(t, Op) and t.name == "min"), None)
    if least is None:
        yield terms, remainder
        return
    others = from_linear(({t: c for t, c in terms.items() if t is not least}, remainder))
    for part in least.args:
        yield from _forms(part + others)


def first_time(value: Expr, again: int, how: str) -> Expr:
    """The vector, but in its first `again` lanes what changes nothing in a reduction."""
    lanes, index, otherwise = value.dtype.lanes, MASKS[value.dtype.bits], identity(how, value.dtype.replace(lanes=1))
    new = op("ge", k.Ramp(const(0, index), 1, lanes), k.Broadcast(const(again, index), lanes))
    return op("where", new, value, k.Broadcast(otherwise, lanes))
