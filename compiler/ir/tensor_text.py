"""Text of Tensor IR, both ways: a `def` with one equation per line; `parse(show(p)) is p`."""

from __future__ import annotations

import ast

from compiler.ir import text
from compiler.ir.dtype import DTYPES, HALVES, DType, boolean, i64
from compiler.ir.expr import Const, Expr
from compiler.ir.tensor import ORDERS, Axis, Equation, Group, Map, Order, Program, Reduce, Scan, Scatter, Tensor
from compiler.ir.text import MEANT, WORD, Scope, expression, fail, function, indent, show_program, show_type, tensor
from compiler.ir.text import show as show_expr

_TRUE = Const(True, boolean)


def show(program: Program) -> str:
    """The program as text; `sizes` come first, as `n: size`."""
    lines: list[str] = []
    for g in program.groups:
        origin = "".join(f", {o!r}" for o in g.origin)
        lines += [f'with kernel("{g.name}"{origin}):', *indent([show_equation(e) for e in g.equations])]
    for t, place in zip(program.outputs, program.into or ("",) * len(program.outputs), strict=True):
        into = f", into={place}" if place else ""
        lines.append(f"result({t.name}, {show_type(t.dtype, t.shape, t.strides)}{into})")
    return show_program(program.name, program.sizes, program.inputs, (), lines)


def show_equation(e: Equation) -> str:
    dtype = f"{e.narrow} in {e.dtype}" if e.narrow else f"{e.dtype}"
    head = f"{e.name}[{', '.join(f'{a.name}: {show_expr(a.extent)}' for a in e.axes) or '()'}]: {dtype} = "
    match e:
        case Map(value=value):
            return head + show_expr(value)
        case Reduce(op=op, over=over, value=value):
            return f"{head}{WORD.get(op, op)}({show_expr(value)}{_ranges(over)})"
        case Scan(op=op, along=along, value=value):
            return f"{head}scan({WORD.get(op, op)}, {along}, {show_expr(value)})"
        case Order(along=along, how=how, over=over, value=value):
            return f"{head}{how}({along}, [{show_expr(value)}{_ranges(over)}])"
        case Scatter(base=base, op=op, over=over, index=index, value=value, guard=guard):
            at = ", ".join(map(show_expr, index))
            where = "" if guard is _TRUE else f", {show_expr(guard)}"
            update = f"([{at}], {show_expr(value)}{where}){_ranges(over)}"
            return f"{head}scatter({WORD.get(op, op)}, {show_expr(base)}, [{update}])"
    raise TypeError(type(e).__name__)


def _ranges(over: tuple[Axis, ...]) -> str:
    return "".join(f" for {a.name} in range({show_expr(a.extent)})" for a in over)


def parse(source: str) -> Program:
    """A program from its text; raises TextError with line and column."""
    f = function(source)
    scope = Scope()
    inputs: list[Tensor] = []
    sizes, arguments = text.sizes(f, scope)
    for a in arguments:
        inputs.append(tensor(a, scope))
        scope.buffers[a.arg] = inputs[-1].dtype
    groups: list[Group] = []
    outputs: list[Tensor] = []
    into: list[str] = []
    for s in f.body:
        match s:
            case ast.With([ast.withitem(ast.Call(ast.Name("kernel"), [ast.Constant(str() as name), *origin]))], body):
                made = tuple(_equation(x, scope) for x in body)
                groups.append(Group(name, made, tuple(o.value for o in origin if isinstance(o, ast.Constant))))  # type: ignore[misc]
            case ast.Expr(ast.Call(ast.Name("result"), [ast.Name(name), kind], words)):
                outputs.append(tensor(ast.arg(name, kind, lineno=s.lineno, col_offset=0), scope))
                into.append(next((w.value.id for w in words if isinstance(w.value, ast.Name)), ""))
            case ast.Pass():
                pass
            case _:
                raise fail(s, "expected `with kernel(..):` or `result(..)`")
    return Program(f.name, tuple(inputs), tuple(groups), tuple(outputs), sizes, tuple(into) if any(into) else ())


def _equation(s: ast.stmt, scope: Scope) -> Equation:
    match s:
        case ast.AnnAssign(ast.Subscript(ast.Name(name), index), declared, ast.expr() as value):
            axes = _axes(index, scope)
            made = _definition(name, axes, value, scope)
            dtype, narrow = _types(declared, s)
            if str(made.dtype) != dtype:
                raise fail(s, f"{name} is declared {dtype} but its value is {made.dtype}")
            scope.buffers[name] = made.dtype
            return made.replace(narrow=narrow)
    raise fail(s, "not an equation")


def _types(declared: ast.expr, s: ast.stmt) -> tuple[str, DType | None]:
    """The element type of `f32` or `bf16 in f32`, and the narrow type or None."""
    match declared:
        case ast.Name(dtype):
            return dtype, None
        case ast.Compare(ast.Name(narrow), [ast.In()], [ast.Name(dtype)]) if DTYPES.get(narrow) in HALVES:
            return dtype, DTYPES[narrow]
    raise fail(s, "an element type is `f32`, or `bf16 in f32`")


def _axes(index: ast.expr, scope: Scope) -> tuple[Axis, ...]:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    out = []
    for p in parts:
        match p:
            case ast.Slice(ast.Name(name), ast.expr() as extent):
                out.append(Axis(name, expression(extent, scope)))
            case _:
                raise fail(p, "an axis is `name: extent`")
    return tuple(out)


def _definition(name: str, axes: tuple[Axis, ...], value: ast.expr, scope: Scope) -> Equation:
    inner = _within(scope, axes)
    match value:
        case ast.Call(ast.Name(how), [ast.GeneratorExp(body, ranges)]):
            over = _over(ranges, scope)
            return Reduce(name, axes, MEANT.get(how, how), over, expression(body, _within(inner, over)))
        case ast.Call(ast.Name("scan"), [ast.Name(how), ast.Name(along), body]):
            return Scan(name, axes, MEANT.get(how, how), along, expression(body, inner))
        case ast.Call(ast.Name(how), [ast.Name(along), ast.ListComp(body, ranges)]) if how in ORDERS:
            over = _over(ranges, scope)
            return Order(name, axes, along, how, over, expression(body, _within(inner, over)))
        case ast.Call(ast.Name("scatter"), [ast.Name(how), base, ast.ListComp(update, ranges)]):
            return _scatter(name, axes, how, base, update, _over(ranges, scope), scope)
        case ast.Call(ast.Name("scatter"), [ast.Name(how), base, ast.List([update])]):
            return _scatter(name, axes, how, base, update, (), scope)
        case ast.Call(ast.Name(how), [body]) if how in ("sum", "prod", "all", "any", "max", "min"):
            return Reduce(name, axes, MEANT.get(how, how), (), expression(body, inner))
    return Map(name, axes, expression(value, inner))


def _scatter(
    name: str, axes: tuple[Axis, ...], how: str, base: ast.expr, update: ast.expr, over: tuple[Axis, ...], scope: Scope
) -> Scatter:
    inner = _within(scope, over)
    match update:
        case ast.Tuple([ast.List(at), value, *guard]):
            index = tuple(expression(x, inner) for x in at)
            cond: Expr = expression(guard[0], inner) if guard else _TRUE
            start = expression(base, _within(scope, axes))
            return Scatter(name, axes, start, MEANT.get(how, how), over, index, expression(value, inner), cond)
    raise fail(update, "an update is `([index], value)` or `([index], value, guard)`")


def _over(ranges: list[ast.comprehension], scope: Scope) -> tuple[Axis, ...]:
    out = []
    for r in ranges:
        match r:
            case ast.comprehension(ast.Name(name), ast.Call(ast.Name("range"), [extent])):
                out.append(Axis(name, expression(extent, scope)))
            case _:
                raise fail(r.target, "expected `for name in range(extent)`")
    return tuple(out)


def _within(scope: Scope, axes: tuple[Axis, ...]) -> Scope:
    inner = scope.inner()
    inner.scalars |= {a.name: i64 for a in axes}
    return inner
