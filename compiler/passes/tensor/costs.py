"""What it costs to compute an element, against storing it."""

from __future__ import annotations

import functools

from compiler.ir.expr import Expr, Load, Op
from compiler.ir.functions import COST, FUNCTIONS

# The cost of an operation, in fused multiply-adds of a vector lane (rough, for CPUs and GPUs alike).
_EXPENSIVE = {"div": 4, "sqrt": 4, "floordiv": 4, "mod": 6, "rem": 6, "truncdiv": 4, "gcd": 100}
_EXPENSIVE |= {name: row.cost for name, row in FUNCTIONS.items()}
_CHEAP = {
    "add", "sub", "mul", "neg", "abs", "min", "max", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not",
    "shl", "shr", "where", "isnan", "signbit", "floor", "ceil", "trunc", "round", "sign", "fma", "require",
}  # fmt: skip
# An element that costs at least this is stored rather than computed twice: about a store and a load of a cached row.
WORTH_KEEPING = 8


@functools.lru_cache(maxsize=1 << 14)
def cost(value: Expr) -> int:
    """The cost of the operations of `value` on data. Index arithmetic is free."""
    return sum(_cost(n) for n in value.walk() if isinstance(n, Op) and any(isinstance(x, Load) for x in n.walk()))


def _cost(e: Op) -> int:
    return 1 if e.name in _CHEAP else _EXPENSIVE.get(e.name, COST)
