"""What whole vectors leave over is computed with a vector all the same, which has some elements a second time."""

from __future__ import annotations

from compiler.analysis.vectors import MASKS
from compiler.ir import kernel as k
from compiler.ir.expr import Expr, const, identity, op


def first_time(value: Expr, again: int, how: str) -> Expr:
    """The vector, but in its first `again` lanes what changes nothing in a reduction."""
    lanes, index, otherwise = value.dtype.lanes, MASKS[value.dtype.bits], identity(how, value.dtype.replace(lanes=1))
    new = op("ge", k.Ramp(const(0, index), 1, lanes), k.Broadcast(const(again, index), lanes))
    return op("where", new, value, k.Broadcast(otherwise, lanes))
