"""The values of the lanes of an integer vector, as far as they are constant."""

from __future__ import annotations

import operator
from collections.abc import Callable

from compiler.ir import kernel as k
from compiler.ir.expr import Const, Expr, Op

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
}  # fmt: skip


def lane_values(e: Expr) -> tuple[int, ...] | None:
    """The value of each lane; None if one is not constant.

    >>> from compiler.ir.expr import const
    >>> lane_values(k.Ramp(const(1), 1, 4) // k.Broadcast(const(2), 4))
    (0, 1, 1, 2)
    """
    match e:
        case k.Ramp(Const(start), step, lanes):
            return tuple(int(start) + step * lane for lane in range(lanes))
        case k.Broadcast(Const(value), lanes):
            return (int(value),) * lanes
        case Op(name, (a, b)) if name in _OPERATORS:
            left, right = lane_values(a), lane_values(b)
            if left is None or right is None or (name in ("floordiv", "mod") and 0 in right):
                return None
            return tuple(map(_OPERATORS[name], left, right))
    return None
