"""Remainders computed by one more whole vector, which overlaps elements already computed."""

from __future__ import annotations

from compiler.analysis.vectors import MASKS
from compiler.ir import kernel as k
from compiler.ir.expr import Expr, const, identity, op


def mask_recomputed(value: Expr, again: int, how: str) -> Expr:
    """The vector with its first `again` lanes replaced by the identity of the reduction `how`."""
    lanes, index, neutral = value.dtype.lanes, MASKS[value.dtype.bits], identity(how, value.dtype.replace(lanes=1))
    is_new = op("ge", k.Ramp(const(0, index), 1, lanes), k.Broadcast(const(again, index), lanes))
    return op("where", is_new, value, k.Broadcast(neutral, lanes))
