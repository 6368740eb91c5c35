"""Text of Kernel IR, both ways.

```
def f(x: f32[64, 100], *, y: f32[64, 100]):
    t: f32[64]
    with function("rows", [x, t], writes=[t]):
        for i in range(0, 64, 1, parallel):
            m: f32x8 = broadcast(-inf, 8)
            for j in range(0, 96, 8):
                m = max(m, x[i * 100 + j, f32x8])
            t[i] = across(max, m)
```
A temporary with ` = 0` is zero before and after a run. `view(x, f32[6400])` is x with other axes in the same memory.
Tensor maps describe parameters as the function sees them.

`name: type = value` declares, `name = value` assigns. A vector load has its type after the index; other loads are
`gather(x, index)` and, from another block of the cluster, `peer(x, index, rank)`. The address of an element is
`x @ (i)`, a comment is a string.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from compiler.ir import dtype as dt
from compiler.ir import kernel as k
from compiler.ir import text
from compiler.ir.dtype import i64
from compiler.ir.expr import COMBINE, Const, Expr, Load, Var, const, substitute
from compiler.ir.tensor import Tensor
from compiler.ir.text import MEANT, WORD, Scope, Words, fail, indent, parse_program, show_program, show_seen, show_type

_PLAIN_ALIGN = 64


def show(program: k.Program) -> str:
    zero = {name: " = 0" for name in program.zeros}
    lines = [f"{t.name}: {show_type(t.dtype, t.shape, t.strides)}{zero.get(t.name, '')}" for t in program.temps]
    known = {t.name: t for t in (*program.inputs, *program.outputs, *program.temps)}
    lines += [line for f in program.functions for line in show_function(f, known)]
    return show_program(program.name, program.sizes, program.inputs, program.outputs, lines)


def show_function(f: k.Function, known: Mapping[str, Tensor]) -> list[str]:
    words = [f'"{f.name}"', f"[{', '.join(show_seen(p, known) for p in f.params)}]", f"writes=[{', '.join(f.writes)}]"]
    words += [f"grid=[{', '.join(map(show_expr, f.grid))}]"] if f.grid else []
    words += [f"{name}={list(value)!r}" for name, value in (("block", f.block), ("origin", f.origin)) if value]
    words += [f"schedule={f.schedule!r}"] if f.schedule else []
    words += [f"maps=[{', '.join(map(_show_map, f.maps))}]"] if f.maps else []
    words += [f"cluster={f.cluster}"] if f.cluster > 1 else []
    words += [f"exchanged=[{', '.join(f.exchanged)}]"] if f.exchanged else []
    words += [f"checks={list(f.checks)}"] if f.checks else []
    return [f"with function({', '.join(words)}):", *indent(show_body(f.body))]


def show_body(body: tuple[k.Stmt, ...]) -> list[str]:
    return [line for s in body for line in show_stmt(s)] or ["pass"]


def show_stmt(s: k.Stmt) -> list[str]:
    match s:
        case k.Declare(name, value):
            return [f"{name}: {value.dtype} = {show_expr(value)}"]
        case k.Assign(name, value):
            return [f"{name} = {show_expr(value)}"]
        case k.Store(buffer, index, value, op):
            if op == "sum":
                return [f"{buffer}[{show_expr(index)}] += {show_expr(value)}"]
            shown = show_expr(value) if op == "set" else f"update({WORD.get(op, op)}, {show_expr(value)})"
            return [f"{buffer}[{show_expr(index)}] = {shown}"]
        case k.For(var, start, stop, step, body, mark, ahead):
            marks = [*([mark] if mark else []), *([f"ahead={ahead}"] if ahead else [])]
            words = [show_expr(start), show_expr(stop), str(step), *marks]
            return [f"for {var} in range({', '.join(words)}):", *indent(show_body(body))]
        case k.If(cond, body, orelse):
            other = ["else:", *indent(show_body(orelse))] if orelse else []
            return [f"if {show_expr(cond)}:", *indent(show_body(body)), *other]
        case k.Array(name, dtype, size, space, align):
            return [f"{name} = array({space}, {dtype}, {size}{f', {align}' if align != _PLAIN_ALIGN else ''})"]
        case k.Call(called, template, args, writes):
            words = [f'"{called}"', repr(list(template)), *map(_show_argument, args), f"writes=[{', '.join(writes)}]"]
            return [f"call({', '.join(words)})"]
        case k.Barrier(scope):
            return [f'barrier("{scope}")']
        case k.Comment(remark):
            return [repr(remark)]
    raise TypeError(f"{type(s).__name__} is not a Kernel IR statement")


def _show_map(m: k.TensorMap) -> str:
    steps = f", {list(m.steps)!r}" if m.steps else ""
    return f'tensor_map("{m.name}", {m.buffer}, {list(m.box)!r}, {m.swizzle}{steps})'


def _show_argument(a: Expr | k.Address | k.Map) -> str:
    if isinstance(a, k.Map):
        return f"tensor_map({a.name})"
    return f"{a.buffer} @ ({show_expr(a.index)})" if isinstance(a, k.Address) else show_expr(a)


def show_expr(e: Expr) -> str:
    return text.show(_with_placeholders(e))


def _with_placeholders(e: Any) -> Any:
    """`e` with expressions that only Kernel IR has replaced by variables named by their text."""
    match e:
        case Const(value, dtype) if dtype in dt.STORAGE_ONLY:
            shown = f"literal({value!r}, {dtype})"
        case Load(buffer, (index,), dtype) if dtype.lanes > 1:
            shown = f"{buffer}[{show_expr(index)}, {dtype}]"
        case k.Gather(buffer, index, _):
            shown = f"gather({buffer}, {show_expr(index)})"
        case k.Broadcast(arg, lanes):
            shown = f"broadcast({show_expr(arg)}, {lanes})"
        case k.Ramp(start, step, lanes):
            shown = f"ramp({show_expr(start)}, {step}, {lanes})"
        case k.Across(op, arg):
            shown = f"across({WORD.get(op, op)}, {show_expr(arg)})"
        case k.Together(op, arg, threads, scratch, apart):
            through = (f", {scratch}" if scratch else "") + (f", {apart}" if apart > 1 else "")
            shown = f"together({WORD.get(op, op)}, {show_expr(arg)}, {threads}{through})"
        case k.Ones(arg):
            shown = f"ones({show_expr(arg)})"
        case k.Peer(buffer, index, rank):
            shown = f"peer({buffer}, {show_expr(index)}, {show_expr(rank)})"
        case k.Builtin(name):
            shown = name
        case Expr():
            return e.map(_with_placeholders)
        case _:
            return e
    return Var(shown, e.dtype)


# ---- reading


def parse(source: str) -> k.Program:
    """A program from its text; raises TextError with line and column."""
    p = parse_program(source, "function", _function)
    return k.Program(p.name, p.inputs, p.outputs, p.temps, p.parts, p.sizes, p.zeros)


def _function(name: str, params: tuple[Tensor, ...], words: Words, body: list[ast.stmt], scope: Scope) -> k.Function:
    return k.Function(
        name,
        params,
        _names(getattr(words.get("writes"), "elts", [])),
        _body(body, scope),
        tuple(expression(e, scope) for e in getattr(words.get("grid"), "elts", [])),
        _values(words.get("block")),
        _values(words.get("origin")),
        str(ast.literal_eval(words["schedule"])) if "schedule" in words else "",
        tuple(map(_map, getattr(words.get("maps"), "elts", []))),
        int(ast.literal_eval(words["cluster"])) if "cluster" in words else 1,
        _names(getattr(words.get("exchanged"), "elts", [])),
        _values(words.get("checks")),
    )


def _names(parts: list[ast.expr]) -> tuple[str, ...]:
    return tuple(p.id for p in parts if isinstance(p, ast.Name))


def _values(e: ast.expr | None) -> tuple[Any, ...]:
    return () if e is None else tuple(ast.literal_eval(e))


def _body(body: list[ast.stmt], scope: Scope) -> tuple[k.Stmt, ...]:
    return tuple(_statement(s, scope) for s in body if not isinstance(s, ast.Pass))


def _statement(s: ast.stmt, scope: Scope) -> k.Stmt:
    match s:
        case ast.AnnAssign(ast.Name(name), kind, ast.expr() as written):
            value = expression(written, scope)
            if str(value.dtype) != ast.unparse(kind):
                raise fail(s, f"{name} is declared {ast.unparse(kind)} but its value is {value.dtype}")
            scope.scalars[name] = value.dtype
            return k.Declare(name, value)
        case ast.AugAssign(ast.Subscript(ast.Name(name), at), ast.Add(), value):
            return k.Store(name, expression(at, scope), expression(value, scope), "sum")
        case ast.Assign([ast.Subscript(ast.Name(name), at)], ast.Call(ast.Name("update"), [ast.Name(how), value])):
            return k.Store(name, expression(at, scope), expression(value, scope), _combine(s, how))
        case ast.Assign([ast.Subscript(ast.Name(name), at)], value):
            return k.Store(name, expression(at, scope), expression(value, scope))
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name("array"), [ast.Name(space), ast.Name(dtype), *numbers])):
            scope.buffers[name] = dt.parse(dtype)
            return k.Array(name, scope.buffers[name], *_array_size(s, numbers, space))
        case ast.Assign([ast.Name(name)], value):
            return k.Assign(name, expression(value, scope))
        case ast.For(
            ast.Name(var), ast.Call(ast.Name("range"), [start, stop, ast.Constant(int() as step), *mark], words), body
        ):
            inner = scope.inner()
            inner.scalars[var] = i64
            first, last = expression(start, scope), expression(stop, scope)
            return k.For(var, first, last, step, _body(body, inner), "".join(_names(mark)), _ahead(s, words))
        case ast.If(cond, body, orelse):
            return k.If(expression(cond, scope), _body(body, scope.inner()), _body(orelse, scope.inner()))
        case ast.Expr(ast.Call(ast.Name("call"), [ast.Constant(str() as name), ast.List() as template, *args], words)):
            writes = _names(getattr(words[0].value, "elts", [])) if words else ()
            return k.Call(name, _values(template), tuple(_argument(a, scope) for a in args), writes)
        case ast.Expr(ast.Call(ast.Name("barrier"), [ast.Constant(str() as name)])):
            return k.Barrier(name)
        case ast.Expr(ast.Constant(str() as remark)):
            return k.Comment(remark)
    raise fail(s, "not a statement")


def _array_size(s: ast.stmt, numbers: list[ast.expr], space: str) -> tuple[int, str, int]:
    match numbers:
        case [ast.Constant(int() as size)]:
            return size, space, _PLAIN_ALIGN
        case [ast.Constant(int() as size), ast.Constant(int() as align)]:
            return size, space, align
    raise fail(s, "expected array(space, type, size) or array(space, type, size, alignment)")


def _ahead(s: ast.stmt, words: list[ast.keyword]) -> int:
    match words:
        case []:
            return 0
        case [ast.keyword("ahead", ast.Constant(int() as ahead))]:
            return ahead
    raise fail(s, "expected range(start, stop, step, mark, ahead=bytes), with or without the last two")


def _combine(at: ast.AST, word: str) -> str:
    op = MEANT.get(word, word)
    if op not in COMBINE:
        raise fail(at, f"{word} is not a reduction")
    return op


def _map(e: ast.expr) -> k.TensorMap:
    match e:
        case ast.Call(
            ast.Name("tensor_map"),
            [ast.Constant(str() as name), ast.Name(buffer), box, ast.Constant(int() as span), *steps],
        ) if len(steps) < 2:
            return k.TensorMap(name, buffer, _values(box), span, _values(steps[0]) if steps else ())
    raise fail(e, 'expected tensor_map("name", buffer, [box], swizzle) or tensor_map(.., swizzle, [steps])')


def _argument(e: ast.expr, scope: Scope) -> Expr | k.Address | k.Map:
    match e:
        case ast.Call(ast.Name("tensor_map"), [ast.Name(name)]):
            return k.Map(name)
        case ast.BinOp(ast.Name(buffer), ast.MatMult(), index) if buffer in scope.buffers:
            return k.Address(buffer, expression(index, scope))
    return expression(e, scope)


def expression(e: ast.expr, scope: Scope) -> Expr:
    """An expression from its syntax tree; parts that only Kernel IR has are parsed here, and the rest by `text`."""
    reader = _Reader(scope)
    common = reader.visit(e)
    result: Expr = substitute(text.expression(common, reader.scope), reader.table)
    return result


class _Reader(ast.NodeTransformer):
    def __init__(self, scope: Scope) -> None:
        self.outer, self.scope = scope, scope.inner()
        self.table: dict[Var, Expr] = {}

    def visit(self, node: ast.AST) -> Any:
        made = _kernel_expression(node, self.outer) if isinstance(node, ast.expr) else None
        if made is None:
            return self.generic_visit(node)
        name = ast.unparse(node)
        self.scope.scalars[name] = made.dtype
        self.table[Var(name, made.dtype)] = made
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def _kernel_expression(e: ast.expr, scope: Scope) -> Expr | None:
    match e:
        case ast.Subscript(ast.Name(name), ast.Tuple([index, ast.Name(kind)])) if name in scope.buffers:
            dtype = _dtype(e, kind)
            if dt.vector(dtype, 1) is not scope.buffers[name]:
                raise fail(e, f"{name} has elements of type {scope.buffers[name]}")
            return Load(name, (expression(index, scope),), dtype)
        case ast.Call(ast.Name("gather"), [ast.Name(name), index]) if name in scope.buffers:
            places = expression(index, scope)
            return k.Gather(name, places, dt.vector(scope.buffers[name], places.dtype.lanes))
        case ast.Call(ast.Name("broadcast"), [arg, ast.Constant(int() as lanes)]):
            return k.Broadcast(expression(arg, scope), lanes)
        case ast.Call(ast.Name("ramp"), [start, step, ast.Constant(int() as lanes)]):
            return k.Ramp(expression(start, scope), int(ast.literal_eval(step)), lanes)
        case ast.Call(ast.Name("across"), [ast.Name(word), arg]):
            return k.Across(_combine(e, word), expression(arg, scope))
        case ast.Call(ast.Name("together"), [ast.Name(word), arg, ast.Constant(int() as threads), *others]):
            scratch = "".join(n.id for n in others if isinstance(n, ast.Name))
            steps = [n.value for n in others if isinstance(n, ast.Constant) and isinstance(n.value, int)]
            return k.Together(_combine(e, word), expression(arg, scope), threads, scratch, *steps)
        case ast.Call(ast.Name("ones"), [arg]):
            return k.Ones(expression(arg, scope))
        case ast.Call(ast.Name("peer"), [ast.Name(name), index, rank]) if name in scope.buffers:
            return k.Peer(name, expression(index, scope), expression(rank, scope), scope.buffers[name])
        case ast.Call(ast.Name("literal"), [number, ast.Name(kind)]):
            value = text.literal(number)
            if value is None:
                raise fail(e, "expected a number")
            return const(value, _dtype(e, kind))
        case ast.Attribute(ast.Name(owner), name):
            return k.Builtin(f"{owner}.{name}")
    return None


def _dtype(at: ast.AST, name: str) -> dt.DType:
    try:
        return dt.parse(name)
    except (KeyError, ValueError):
        raise fail(at, f"{name} is not a type") from None
