"""What remains of a size after blocks of a given length, and whether one overlapping block can cover it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from compiler.ir.expr import Expr, Op
from compiler.ir.linear import Linear, from_linear, linear
from compiler.ir.ranges import Range
from compiler.ir.value_ranges import value_range
from compiler.targets.target import Instruction


def remainder(size: Expr, by: int) -> int:
    """`size` modulo `by`; -1 if it is not known. Of several possible remainders, zeros are ignored."""
    forms = list(_linear_forms(size))
    if any(c % by for terms, _ in forms for c in terms.values()):
        return -1
    rests = {n % by for _, n in forms} - {0}
    return rests.pop() if len(rests) == 1 else -1 if rests else 0


def unit(size: Expr, most: int) -> int:
    """The largest divisor of `most` that is known to divide `size`."""
    return math.gcd(most, *(x for terms, remainder in _linear_forms(size) for x in (*terms.values(), remainder)))


def _linear_forms(size: Expr) -> Iterator[Linear]:
    """The linear forms that `size` may have: one per argument of a `min`, also within a sum."""
    if isinstance(size, Op) and size.name == "min":
        for part in size.args:
            yield from _linear_forms(part)
        return
    terms, remainder = linear(size)
    least = next((t for t, c in terms.items() if c == 1 and isinstance(t, Op) and t.name == "min"), None)
    if least is None:
        yield terms, remainder
        return
    others = from_linear(({t: c for t, c in terms.items() if t is not least}, remainder))
    for part in least.args:
        yield from _linear_forms(part + others)


def again_problem(columns: Expr, row: Instruction, ranges: Mapping[str, Range]) -> str:
    """Why a whole block of an instruction cannot recompute the columns that are left over; empty if it can."""
    if "b.k" not in row.contiguous:
        return f"{row.name} makes columns that are left over in vectors of fewer lanes, not again"
    if (value_range(columns, ranges)[0] or 0) < row.n:
        return f"there may be fewer columns than {row.n}, which a whole block of {row.name} has"
    return "" if remainder(columns, row.n) else f"whole blocks of {row.name} leave no columns over to be made again"
