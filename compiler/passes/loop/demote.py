"""Loop IR in, Loop IR out: a temporary that all its readers round to 16 bits is stored so.

Values are rounded where PyTorch rounds them, which may be in the kernel that reads them. Rounded before they are stored
they take half the memory, and a factor of a matmul is then a block of a buffer that can be copied as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.dtype import STORAGE_ONLY, DType
from compiler.ir.expr import Cast, Expr, Load, cast, substitute
from compiler.ir.node import Node
from compiler.ir.rewrite import statements
from compiler.ir.statement import Kernel, Program, Stmt, Store
from compiler.ir.tensor import Tensor


def demote(program: Program) -> Program:
    """Temporaries that kernels pass on as f32, and others only read rounded to one 16-bit type, are of that type."""
    temps = {t.name for t in program.temps}
    found: dict[str, set[DType | None]] = {}
    for k in program.kernels:
        for name, kinds in _rounded(k, temps).items():
            found.setdefault(name, set()).update(kinds)
    types = {name: kind for name, kinds in found.items() if len(kinds) == 1 and (kind := kinds.pop()) is not None}
    if not types:
        return program
    return program.replace(
        temps=tuple(_typed(t, types) for t in program.temps),
        kernels=tuple(_kernel(k, types) for k in program.kernels),
    )


def _rounded(k: Kernel, temps: set[str]) -> dict[str, set[DType | None]]:
    """What a kernel rounds each temporary that it reads to; None where it does not, or also writes it."""
    found: dict[str, set[DType | None]] = {}
    for s in k.body:
        for name, kind in _loads(s, temps):
            found.setdefault(name, set()).add(kind)
    stores = [n for s in k.body for n in s.walk() if isinstance(n, Store) and n.buffer in temps]
    for s in stores:
        if s.op != "set" or s.buffer in found:
            found.setdefault(s.buffer, set()).add(None)
    return found


def _loads(node: Node, temps: set[str]) -> Iterator[tuple[str, DType | None]]:
    """The loads of temporaries, each with the 16-bit type that it is rounded to, if it is."""
    match node:
        case Cast(Load(name), dtype) if name in temps and dtype in STORAGE_ONLY and node.arg.dtype not in STORAGE_ONLY:
            yield name, dtype
            yield from (x for i in node.arg.children() for x in _loads(i, temps))
            return
        case Load(name) if name in temps:
            yield name, None
    for child in node.children():
        yield from _loads(child, temps)


def _typed(t: Tensor, types: dict[str, DType]) -> Tensor:
    return t.replace(dtype=types.get(t.name, t.dtype))


def _kernel(k: Kernel, types: dict[str, DType]) -> Kernel:
    table: dict[Expr, Expr] = {}
    for s in k.body:
        for n in s.walk():
            match n:
                case Cast(Load(name) as load, dtype) if types.get(name) is dtype:
                    table[n] = load.replace(type=dtype)

    def stored(s: Stmt) -> Stmt | None:
        match s:
            case Store(buffer, _, value) if buffer in types:
                return s.replace(value=cast(value, types[buffer]))
        return None

    body = statements(substitute(k.body, table), stored)
    return k.replace(params=tuple(_typed(p, types) for p in k.params), body=body)
