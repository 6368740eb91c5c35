"""Text of Loop IR, both ways: `for i in parallel(64):`, `for j in reduce(100):`, `for j in scan(100):`."""

from __future__ import annotations

import ast

from compiler.ir import loop, statement_text
from compiler.ir.statement import Program, Stmt
from compiler.ir.text import Scope, expression, indent
from compiler.ir.text import show as show_expr


def show(program: Program) -> str:
    return statement_text.show(program, _show)


def parse(text: str) -> Program:
    """A program from its text; raises TextError with line and column."""
    return statement_text.parse(text, _parse)


def _show(s: Stmt) -> list[str]:
    match s:
        case loop.For(var, extent, kind, body):
            return [f"for {var} in {kind}({show_expr(extent)}):", *indent(statement_text.show_body(body, _show))]
    raise TypeError(f"{type(s).__name__} is not a Loop IR statement")


def _parse(s: ast.stmt, scope: Scope) -> tuple[Stmt, ...] | None:
    match s:
        case ast.For(ast.Name(var), ast.Call(ast.Name(kind), [extent]), body) if kind in loop.KINDS:
            inner, _ = statement_text.within(scope, var)
            return (loop.For(var, expression(extent, scope), kind, statement_text.statements(body, inner, _parse)),)
    return None
