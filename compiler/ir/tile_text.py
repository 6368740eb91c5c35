"""Text of Tile IR, both ways.

Loops name their level (`for j in vector(100, reduce, width=8):`, `parallel` unsaid), tiles their memory
(`a = shared(bf16[128, 64], swizzle=128)`), copies how (`copy(a[..], x[..], tma)`). Slices are `start: +length` or
`start: +length: step`, with `.permute(1, 0)` behind them where the axes are taken in another order.
"""

from __future__ import annotations

import ast

from compiler.ir import statement_text, tile
from compiler.ir.expr import Expr
from compiler.ir.statement import Program, Stmt
from compiler.ir.tensor import Tensor
from compiler.ir.text import Scope, expression, fail, indent, show_type, tensor_type
from compiler.ir.text import show as show_expr


def show(program: Program) -> str:
    return statement_text.show(program, _show)


def show_statements(body: tuple[Stmt, ...]) -> str:
    return "\n".join(statement_text.show_body(body, _show))


def parse(text: str) -> Program:
    """A program from its text; raises TextError with line and column."""
    return statement_text.parse(text, _parse)


def _show(s: Stmt) -> list[str]:
    match s:
        case tile.For(var, extent, kind, tile.Bind(level, args), body):
            said = [show_expr(extent), *([] if kind == "parallel" else [kind]), *(f"{n}={v}" for n, v in args)]
            return [f"for {var} in {level}({', '.join(said)}):", *indent(statement_text.show_body(body, _show))]
        case tile.Alloc(t, space, swizzle):
            more = f", swizzle={swizzle}" if swizzle else ""
            return [f"{t.name} = {space}({show_type(t.dtype, t.shape, t.strides)}{more})"]
        case tile.Copy(target, source, how):
            return [f'copy({show_slice(target)}, {show_slice(source)}, "{how}")']
        case tile.Mma(instruction, acc, a, b, layout, sizes):
            said = [
                f'"{instruction}"',
                *map(show_slice, (acc, a, b)),
                *(f'"{x}"' for x in layout),
                *map(show_expr, sizes),
            ]
            return [f"mma({', '.join(said)})"]
    raise TypeError(f"{type(s).__name__} is not a Tile IR statement")


def show_slice(s: tile.Slice) -> str:
    steps = [f": {n}" if n > 1 else "" for n in s.steps or (1,) * len(s.starts)]
    axes = zip(s.starts, s.lengths, steps, strict=True)
    parts = [f"{show_expr(b)}: +{n}{step}" if n else show_expr(b) for b, n, step in axes]
    order = f".permute({', '.join(map(str, s.order))})" if s.order else ""
    return f"{s.buffer}[{', '.join(parts) or '()'}]{order}"


def _parse(s: ast.stmt, scope: Scope) -> tuple[Stmt, ...] | None:
    match s:
        case ast.For(ast.Name(var), ast.Call(ast.Name(level), [extent, *kind], keywords), body) if level in tile.LEVELS:
            inner, _ = statement_text.within(scope, var)
            words = tuple((k.arg or "", _whole(k.value)) for k in keywords)
            how = kind[0].id if kind and isinstance(kind[0], ast.Name) else "parallel"
            made = statement_text.statements(body, inner, _parse)
            return (tile.For(var, expression(extent, scope), how, tile.Bind(level, words), made),)
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name(space), [kind], keywords)) if space in tile.SPACES:
            t = Tensor(name, *tensor_type(kind, scope))
            scope.buffers[name] = t.dtype
            return (tile.Alloc(t, space, _whole(keywords[0].value) if keywords else 0),)
        case ast.Expr(ast.Call(ast.Name("copy"), [target, source, ast.Constant(str() as how)])):
            return (tile.Copy(_slice(target, scope), _slice(source, scope), how),)
        case ast.Expr(
            ast.Call(
                ast.Name("mma"), [ast.Constant(str() as name), acc, a, b, ast.Constant(la), ast.Constant(lb), *sizes]
            )
        ):
            c, left, right = (_slice(x, scope) for x in (acc, a, b))
            return (tile.Mma(name, c, left, right, (str(la), str(lb)), tuple(expression(e, scope) for e in sizes)),)
    return None


def _whole(e: ast.expr) -> int:
    match e:
        case ast.Constant(int() as v):
            return v
    raise fail(e, "expected a whole number")


def _slice(e: ast.expr, scope: Scope) -> tile.Slice:
    match e:
        case ast.Subscript(ast.Name(name), index) if name in scope.buffers:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            return tile.Slice(name, *_ranges(parts, scope))
        case ast.Call(ast.Attribute(inner, "permute"), [*axes], []):
            return _slice(inner, scope).replace(order=tuple(map(_whole, axes)))
    raise fail(e, "not a slice of a buffer")


def _ranges(parts: list[ast.expr], scope: Scope) -> tuple[tuple[Expr, ...], tuple[int, ...], tuple[int, ...]]:
    starts, lengths, steps = [], [], []
    for p in parts:
        match p:
            case ast.Slice(ast.expr() as start, ast.UnaryOp(ast.UAdd(), n), step):
                starts.append(expression(start, scope))
                lengths.append(_whole(n))
                steps.append(_whole(step) if step else 1)
            case ast.expr():
                starts.append(expression(p, scope))
                lengths.append(0)
                steps.append(1)
    return tuple(starts), tuple(lengths), tuple(steps) if set(steps) - {1} else ()
