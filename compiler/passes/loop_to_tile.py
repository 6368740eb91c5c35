"""Lower Loop IR to Tile IR: the same nest with every loop bound to `serial`; schedule steps bind it from there."""

from __future__ import annotations

from compiler.ir import loop, tile
from compiler.ir.rewrite import statements
from compiler.ir.statement import Program, Stmt

SERIAL = tile.Bind("serial")


def loop_to_tile(program: Program) -> Program:
    return program.replace(kernels=tuple(k.replace(body=statements(k.body, _serial)) for k in program.kernels))


def _serial(s: Stmt) -> Stmt | None:
    match s:
        case loop.For(var, extent, kind, body):
            return tile.For(var, extent, kind, SERIAL, body)
    return None
