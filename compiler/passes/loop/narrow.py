"""Loop IR in, Loop IR out: a temporary that all its readers round to 16 bits is stored so.

Values are rounded where PyTorch rounds them, which may be in the kernel that reads them. Rounded before they are stored
they take half the memory, and a factor of a product is then a block of a buffer that can be copied as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir import loop
from compiler.ir.dtype import STORAGE_ONLY, DType
from compiler.ir.expr import Cast, Expr, Load, cast, substitute
from compiler.ir.node import Node
from compiler.ir.statement import If, Kernel, Program, Stmt, Store
from compiler.ir.tensor import Tensor


def narrow(program: Program) -> Program:
    """Temporaries that kernels pass on as f32, and others only read rounded to one 16-bit type, are of that type."""
    types = {t.name: found for t in program.temps if (found := _type(program, t)) is not None}
    if not types:
        return program
    return program.replace(
        temps=tuple(_typed(t, types) for t in program.temps),
        kernels=tuple(_kernel(k, types) for k in program.kernels),
    )


def _type(program: Program, t: Tensor) -> DType | None:
    """What all readers of a temporary round it to; None where one of them does not, or also writes it."""
    found: set[DType | None] = set()
    for k in program.kernels:
        loads = [x for s in k.body for x in _loads(s, t.name)]
        stores = [n for s in k.body for n in s.walk() if isinstance(n, Store) and n.buffer == t.name]
        if (loads and stores) or any(s.op != "set" for s in stores):
            return None
        found |= set(loads)
    return found.pop() if len(found) == 1 else None


def _loads(node: Node, buffer: str) -> Iterator[DType | None]:
    """For each load of a buffer the 16-bit type that it is rounded to, if it is."""
    match node:
        case Cast(Load(name), dtype) if name == buffer and dtype in STORAGE_ONLY and node.arg.dtype not in STORAGE_ONLY:
            yield dtype
            yield from (x for i in node.arg.children() for x in _loads(i, buffer))
            return
        case Load(name) if name == buffer:
            yield None
    for child in node.children():
        yield from _loads(child, buffer)


def _typed(t: Tensor, types: dict[str, DType]) -> Tensor:
    return t.replace(dtype=types.get(t.name, t.dtype))


def _kernel(k: Kernel, types: dict[str, DType]) -> Kernel:
    table: dict[Expr, Expr] = {}
    for s in k.body:
        for n in s.walk():
            match n:
                case Cast(Load(name) as load, dtype) if types.get(name) is dtype:
                    table[n] = load.replace(type=dtype)
    body = tuple(_stored(s, types) for s in substitute(k.body, table))
    return k.replace(params=tuple(_typed(p, types) for p in k.params), body=body)


def _stored(s: Stmt, types: dict[str, DType]) -> Stmt:
    match s:
        case Store(buffer, _, value) if buffer in types:
            return s.replace(value=cast(value, types[buffer]))
        case loop.For(body=inner) | If(body=inner):
            return s.replace(body=tuple(_stored(x, types) for x in inner))
    return s
