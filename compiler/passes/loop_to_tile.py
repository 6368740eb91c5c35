"""Loop IR in, Tile IR out: the same nest with every loop bound to `serial`; schedule steps bind it from there."""

from __future__ import annotations

from compiler.ir import loop, tile
from compiler.ir.statement import If, Program, Stmt

SERIAL = tile.Bind("serial")


def loop_to_tile(program: Program) -> Program:
    return program.replace(kernels=tuple(k.replace(body=_body(k.body)) for k in program.kernels))


def _body(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(_stmt(s) for s in body)


def _stmt(s: Stmt) -> Stmt:
    match s:
        case loop.For(var, extent, kind, body):
            return tile.For(var, extent, kind, SERIAL, _body(body))
        case If(cond, body):
            return If(cond, _body(body))
    return s
