"""Mutations of expressions, of any IR below Torch IR."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from compiler.checks.mutation.tree import Edit
from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, i64
from compiler.ir.expr import COMBINE, OPS, Cast, Const, Expr, Load, Op, Select
from compiler.ir.functions import FUNCTIONS
from compiler.ir.node import Node

# Plausible wrong operations in place of each.
SWAPS: dict[str, tuple[str, ...]] = {
    "add": ("sub", "mul"), "sub": ("add",), "mul": ("add", "div"), "div": ("mul",), "floordiv": ("truncdiv", "mod"),
    "mod": ("rem", "floordiv"), "truncdiv": ("floordiv",), "rem": ("mod",), "gcd": ("min",), "neg": ("abs",),
    "abs": ("neg",),
    "sign": ("abs",), "min": ("max",), "max": ("min",), "lt": ("le", "gt"), "le": ("lt", "ge"), "gt": ("ge", "lt"),
    "ge": ("gt", "le"), "eq": ("ne",), "ne": ("eq",), "and": ("or",), "or": ("and",), "xor": ("or",),
    "shl": ("shr",), "shr": ("shl",), "floor": ("ceil", "trunc"), "ceil": ("floor",), "trunc": ("floor", "round"),
    "round": ("trunc",), "sqrt": ("rsqrt",), **{name: row.mistaken for name, row in FUNCTIONS.items() if row.mistaken},
}  # fmt: skip
REDUCTIONS = {"sum": "max", "prod": "sum", "max": "min", "min": "max", "and": "or", "or": "and"}
_ORDERED = {"sub", "div", "floordiv", "mod", "truncdiv", "rem", "shl", "shr", "lt", "le", "gt", "ge"}
_ORDERED |= {name for name, row in FUNCTIONS.items() if row.arity == 2}
# Narrower types through which a value of each type is rounded.
_NARROW = {"f64": dt.f32, "f32": dt.bf16, "i64": dt.i32, "i32": dt.i16}
assert all(name in OPS for row in SWAPS.items() for name in (row[0], *row[1]))


def edits(node: Node) -> Iterator[Edit]:
    """Replacements for an expression."""
    match node:
        case Const(value, dtype):
            yield from (("constant changed", Const(v, dtype)) for v in _other_values(value, dtype))
        case Op(name, args):
            yield from _other_operations(name, args)
        case Load():
            yield from shift_index(node, "index", "load index")
        case Cast(Cast(inner), dtype) if inner.dtype is dtype:
            yield "rounding dropped", inner
        case Select(cond, then, other):
            yield "condition negated", Select(cond, other, then)
            yield "guard dropped", then
    if isinstance(node, Op) and node.dtype.name in _NARROW and node.dtype is not i64:
        yield f"rounded to {_NARROW[node.dtype.name]}", round_through(node, _NARROW[node.dtype.name])


def round_through(value: Expr, narrow: DType) -> Expr:
    """`value` rounded through a narrower type."""
    wide = value.dtype
    return Cast(Cast(value, narrow.replace(lanes=wide.lanes)), wide)


def _other_operations(name: str, args: tuple[Expr, ...]) -> Iterator[Edit]:
    for other in SWAPS.get(name, ()):
        yield f"{other} instead of {name}", Op(other, args)
    if name in _ORDERED and args[0] is not args[1]:
        yield "operands swapped", Op(name, (args[1], args[0]))
    if name == "where":
        yield "condition negated", Op(name, (args[0], args[2], args[1]))
    if name == "fma":
        yield "addend dropped", Op("mul", args[:2])


def shift_index(node: Node, field: str, place: str) -> Iterator[Edit]:
    """The node with an index in that field shifted by one along a dimension, or with two dimensions exchanged."""
    value = getattr(node, field)
    index: tuple[Expr, ...] = value if isinstance(value, tuple) else (value,)
    indices: list[tuple[str, tuple[Expr, ...]]] = []
    for d, i in enumerate(index):
        for by in (1, -1):
            indices.append(("shifted", (*index[:d], Op("add", (i, Const(by, i64))), *index[d + 1 :])))
    for d in range(len(index) - 1):
        if index[d] is not index[d + 1]:
            indices.append(("transposed", (*index[:d], index[d + 1], index[d], *index[d + 2 :])))
    for description, new in indices:
        yield f"{place} {description}", node.replace(**{field: new if isinstance(value, tuple) else new[0]})


def _other_values(value: bool | int | float, dtype: DType) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif dtype.is_integer:
        low, high = dt.integer_range(dtype)
        yield from (v for v in (value + 1, value - 1) if low <= v <= high)
    elif math.isinf(value):
        yield from (0.0, -value)
    elif not math.isnan(value):
        yield from (dt.rounded(v, dtype) for v in ((1.0, -1.0) if value == 0 else (value * 1.25, value * 0.99, -value)))


def reductions(node: Any) -> Iterator[Edit]:
    """Replace the operation `op` of a reduction by a plausible wrong one."""
    if node.op in COMBINE:
        for other in (REDUCTIONS[node.op], "prod" if node.op == "sum" else "sum"):
            yield "reduction changed", node.replace(op=other)
