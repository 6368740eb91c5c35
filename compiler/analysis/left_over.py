"""Sizes in; what blocks of so many leave over of them out, and whether a block more can make that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from compiler.ir.expr import Expr, Op
from compiler.ir.index import value_range
from compiler.ir.linear import Linear, from_linear, linear
from compiler.ir.ranges import Range
from compiler.targets.target import Instruction


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


def again_problem(columns: Expr, row: Instruction, ranges: Mapping[str, Range]) -> str:
    """Why a whole block of an instruction cannot make the columns that are left over again; empty when it can."""
    if "b.k" not in row.contiguous:
        return f"{row.name} makes columns that are left over in vectors of fewer lanes, not again"
    if (value_range(columns, ranges)[0] or 0) < row.n:
        return f"there may be fewer columns than {row.n}, which a whole block of {row.name} has"
    return "" if remainder(columns, row.n) else f"whole blocks of {row.name} leave no columns over to be made again"
