"""Store an f32 temporary as 16 bits if 16 bits hold its elements exactly.

They do if every stored value was rounded before: a rounded value itself, a selection of such, or a sum of such values
of which all but one are zero, as in the gradient of a split. No value changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from compiler.ir.dtype import STORAGE_ONLY, DType, f32
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, cast
from compiler.ir.rewrite import nodes
from compiler.ir.statement import Init, Kernel, Let, Program, Store
from compiler.ir.tensor import Tensor

ANY = "zero"  # held by every type


def narrow(program: Program) -> Program:
    """Give temporaries the single 16-bit type that holds everything stored to them."""
    writers = Counter(w for k in program.kernels for w in k.writes)
    wide = {t.name for t in program.temps if t.dtype is f32 and writers[t.name] == 1}
    types: dict[str, DType] = {}
    for k in program.kernels:
        types |= _narrowable_temporaries(k, wide, types)
    if not types:
        return program

    def typed(t: Tensor) -> Tensor:
        return t.replace(dtype=types.get(t.name, t.dtype))

    def rule(n: Any) -> Any:
        match n:
            case Load(buffer) if buffer in types and n.dtype is f32:
                return cast(n.replace(type=types[buffer]), f32)
            case Store(buffer) if buffer in types:
                return n.replace(value=cast(n.value, types[buffer]))
        return None

    return program.replace(
        temps=tuple(map(typed, program.temps)),
        kernels=tuple(
            k.replace(params=tuple(map(typed, k.params)), body=nodes(k.body, rule)) if _uses(k, types) else k
            for k in program.kernels
        ),
    )


def _uses(k: Kernel, types: Mapping[str, DType]) -> bool:
    return any(p.name in types for p in k.params)


def _narrowable_temporaries(k: Kernel, wide: set[str], types: Mapping[str, DType]) -> dict[str, DType]:
    """The temporaries that a kernel only sets, to values that one 16-bit type holds, with that type."""
    every = [n for s in k.body for n in s.walk()]
    stores = [n for n in every if isinstance(n, Store) and n.buffer in wide]
    if not stores:
        return {}
    lets: dict[str, list[Expr]] = {}
    for n in every:
        if isinstance(n, Let | Init):
            lets.setdefault(n.name, []).append(n.value)
    accumulators = {n.name for n in every if isinstance(n, Init)}
    values = {name: found[0] for name, found in lets.items() if len(found) == 1 and name not in accumulators}
    kinds: dict[str, set[DType | str | None]] = {}
    for s in stores:
        kinds.setdefault(s.buffer, set()).add(_exact_type(s.value, values, types) if s.op == "set" else None)
    return {name: kind for name, found in kinds.items() if len(found) == 1 and isinstance(kind := found.pop(), DType)}


def _exact_type(e: Expr, lets: Mapping[str, Expr], types: Mapping[str, DType]) -> DType | str | None:
    """The 16-bit type that holds an f32 value exactly, `ANY` for a zero; None if none is known to."""

    def common_type(*parts: Expr) -> DType | str | None:
        kinds = {_exact_type(x, lets, types) for x in parts}
        kinds = kinds - {ANY} or kinds
        return kinds.pop() if len(kinds) == 1 else None

    match e:
        case Const(value):
            return ANY if value == 0 else None
        case Cast(arg) if arg.dtype in STORAGE_ONLY:
            return arg.dtype
        case Load(buffer):
            return types.get(buffer)
        case Var(name):
            return common_type(lets[name]) if name in lets else None
        case Select(_, a, b) | Op("where", (_, a, b)):
            return common_type(a, b)
        case Op("add"):
            parts = terms(e, lets)
            return common_type(*parts) if selecting_index(parts) is not None else None
    return None


def terms(e: Expr, lets: Mapping[str, Expr]) -> list[Expr]:
    """The terms of a sum, without zeros."""
    match e:
        case Var(name) if name in lets:
            return terms(lets[name], lets)
        case Op("add", (a, b)):
            return [*terms(a, lets), *terms(b, lets)]
        case Const(value) if value == 0:
            return []
    return [e]


def selecting_index(parts: list[Expr]) -> tuple[Var, list[int]] | None:
    """The index that selects the one nonzero term, and the value of it that selects each term; None for other sums."""
    found: list[tuple[Var, int]] = []
    for x in parts:
        match x:
            case Select(Op("eq", (Var() as v, Const(n)) | (Const(n), Var() as v)), _, Const(0.0)):
                found.append((v, int(n)))
            case _:
                return None
    numbers = [n for _, n in found]
    is_selection = len({v for v, _ in found}) == 1 and len(set(numbers)) == len(numbers)
    return (found[0][0], numbers) if is_selection else None
