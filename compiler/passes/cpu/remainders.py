"""What whole vectors leave over is computed with a vector all the same, which has some elements a second time."""

from __future__ import annotations

from compiler.ir import dtype as dt
from compiler.ir import kernel as k
from compiler.ir.dtype import i32, i64
from compiler.ir.expr import Expr, const, identity, op

MASKS: dict[int, dt.DType] = {32: i32, 64: i64}  # by the bits of a lane: what to compare so that the mask is as wide


def first_time(value: Expr, again: int, how: str) -> Expr:
    """The vector, but in its first `again` lanes what changes nothing in a reduction."""
    lanes, index, otherwise = value.dtype.lanes, MASKS[value.dtype.bits], identity(how, value.dtype.replace(lanes=1))
    new = op("ge", k.Ramp(const(0, index), 1, lanes), k.Broadcast(const(again, index), lanes))
    return op("where", new, value, k.Broadcast(otherwise, lanes))
