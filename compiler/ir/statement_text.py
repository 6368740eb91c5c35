"""Text of programs made of kernels, both ways, for Loop IR and Tile IR; each IR supplies its own statements.

```
def f(x: f32[64, 100], *, y: f32[64, 100]):
    t: f32[64]
    with kernel("rows", [x, t], writes=[t]):
        ...
```
Inputs come before the star, outputs after it, temporaries are declared inside. A kernel may see a tensor with other
axes in the same memory: `[view(x, f32[6400]), t]`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, Var
from compiler.ir.statement import Accum, If, Init, InOrder, Kernel, Let, Program, Stmt, Store
from compiler.ir.tensor import ORDERS, Tensor
from compiler.ir.text import (
    MEANT,
    WORD,
    Scope,
    TextError,
    Words,
    expression,
    fail,
    indent,
    indices,
    parse_program,
    show_program,
    show_seen,
    show_type,
)
from compiler.ir.text import show as show_expr

ShowOwn = Callable[[Stmt], list[str]]
ParseOwn = Callable[[ast.stmt, Scope], tuple[Stmt, ...] | None]

_INFIX = {"sum": "+=", "prod": "*="}


def show(program: Program, own: ShowOwn) -> str:
    lines = [f"{t.name}: {show_type(t.dtype, t.shape, t.strides)}" for t in program.temps]
    known = {t.name: t for t in (*program.inputs, *program.outputs, *program.temps)}
    lines += [line for k in program.kernels for line in show_kernel(k, own, known)]
    return show_program(program.name, program.sizes, program.inputs, program.outputs, lines)


def show_kernel(k: Kernel, own: ShowOwn, known: Mapping[str, Tensor]) -> list[str]:
    origin = f", origin={list(k.origin)!r}" if k.origin else ""
    params = ", ".join(show_seen(p, known) for p in k.params)
    whole = f', whole="{k.whole}"' if k.whole else ""
    cached = "".join(f", {word}=[{', '.join(own)}]" for word, own in (("once", k.once), ("past", k.past)) if own)
    checks = f", checks={list(k.checks)}" if k.checks else ""
    head = f'with kernel("{k.name}", [{params}], writes=[{", ".join(k.writes)}]{cached}{checks}{whole}{origin}):'
    return [head, *indent(show_body(k.body, own))]


def show_body(body: tuple[Stmt, ...], own: ShowOwn) -> list[str]:
    return [line for s in body for line in show_stmt(s, own)] or ["pass"]


def show_stmt(s: Stmt, own: ShowOwn) -> list[str]:
    match s:
        case Let(name, value):
            return [f"{name} = {show_expr(value)}"]
        case Init(name, value):
            return [f"{name}: {value.dtype} = {show_expr(value)}"]
        case Accum(name, op, value) if op in _INFIX:
            return [f"{name} {_INFIX[op]} {show_expr(value)}"]
        case Accum(name, op, value):
            return [f"{name} = update({WORD.get(op, op)}, {show_expr(value)})"]
        case Store(buffer, index, value, op):
            at = f"{buffer}[{', '.join(map(show_expr, index)) or '()'}]"
            if op in _INFIX:
                return [f"{at} {_INFIX[op]} {show_expr(value)}"]
            return [
                f"{at} = {show_expr(value)}"
                if op == "set"
                else f"{at} = update({WORD.get(op, op)}, {show_expr(value)})"
            ]
        case If(cond, body):
            return [f"if {show_expr(cond)}:", *indent(show_body(body, own))]
        case InOrder(turn, extent, var, count, key, how, body):
            keys = f"[{show_expr(key)} for {var} in range({show_expr(count)})]"
            head = f"for {turn}, {var} in {how}({show_expr(extent)}, {keys}):"
            return [head, *indent(show_body(body, own))]
    return own(s)


def parse(source: str, own: ParseOwn) -> Program:
    def kernel(name: str, params: tuple[Tensor, ...], words: Words, body: list[ast.stmt], scope: Scope) -> Kernel:
        writes, once, past = (
            tuple(w.id for w in getattr(words.get(word), "elts", []) if isinstance(w, ast.Name))
            for word in ("writes", "once", "past")
        )
        origin = tuple(ast.literal_eval(words["origin"])) if "origin" in words else ()
        whole = str(ast.literal_eval(words["whole"])) if "whole" in words else ""
        checks = tuple(ast.literal_eval(words["checks"])) if "checks" in words else ()
        return Kernel(name, params, writes, statements(body, scope, own), origin, whole, once, past, checks)

    p = parse_program(source, "kernel", kernel)
    if p.zeros:
        raise TextError(f"{', '.join(p.zeros)}: only temporaries of Kernel IR are zero before a run")
    return Program(p.name, p.inputs, p.outputs, p.temps, p.parts, p.sizes)


def statements(body: list[ast.stmt], scope: Scope, own: ParseOwn) -> tuple[Stmt, ...]:
    """The statements of one body; names bound in it are added to `scope`."""
    out: list[Stmt] = []
    for s in body:
        made = own(s, scope)
        out += made if made is not None else _statement(s, scope, own)
    return tuple(out)


def _statement(s: ast.stmt, scope: Scope, own: ParseOwn) -> tuple[Stmt, ...]:
    match s:
        case ast.Pass():
            return ()
        case ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
            return (_bind(Init(name, expression(value, scope)), scope),)
        case ast.AugAssign(ast.Name(name), how, value):
            return (Accum(name, _augmented(s, how), expression(value, scope)),)
        case ast.AugAssign(ast.Subscript(ast.Name(name), index), how, value):
            return (Store(name, indices(index, scope), expression(value, scope), _augmented(s, how)),)
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name("update"), [ast.Name(how), value])):
            return (Accum(name, MEANT.get(how, how), expression(value, scope)),)
        case ast.Assign([ast.Subscript(ast.Name(name), index)], ast.Call(ast.Name("update"), [ast.Name(how), value])):
            return (Store(name, indices(index, scope), expression(value, scope), MEANT.get(how, how)),)
        case ast.Assign([ast.Subscript(ast.Name(name), index)], value):
            return (Store(name, indices(index, scope), expression(value, scope)),)
        case ast.Assign([ast.Name(name)], value):
            return (_bind(Let(name, expression(value, scope)), scope),)
        case ast.If(cond, body, []):
            return (If(expression(cond, scope), statements(body, scope.inner(), own)),)
        case ast.For(
            ast.Tuple([ast.Name(turn), ast.Name(var)]),
            ast.Call(
                ast.Name(how), [extent, ast.ListComp(key, [ast.comprehension(_, ast.Call(ast.Name("range"), [count]))])]
            ),
            body,
        ) if how in ORDERS:
            among, _ = within(scope, var)
            inner, _ = within(among, turn)
            sizes = expression(extent, scope), expression(count, scope)
            made = statements(body, inner, own)
            return (InOrder(turn, sizes[0], var, sizes[1], expression(key, among), how, made),)
    raise fail(s, "not a statement")


def _bind(s: Let | Init, scope: Scope) -> Stmt:
    scope.scalars[s.name] = s.value.dtype
    return s


def _augmented(s: ast.stmt, how: ast.operator) -> str:
    if isinstance(how, ast.Add):
        return "sum"
    if isinstance(how, ast.Mult):
        return "prod"
    raise fail(s, "only += and *= accumulate; write update(max, ..) for others")


def within(scope: Scope, var: str) -> tuple[Scope, Expr]:
    """The scope of a loop body, and its variable."""
    inner = scope.inner()
    inner.scalars[var] = i64
    return inner, Var(var, i64)
