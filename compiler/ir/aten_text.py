"""Text of Torch IR, both ways: a `def` with one ATen call per line; `parse(show(p)) is p`.

`return y, into(x, z)` says that the output `z` may overwrite the input `x`.

A call with several results declares their types on lines above it; a result without a type is never read. Known sizes
in arguments are plain integers; an `Expr` argument must contain a symbolic size, otherwise it could not be read back.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from compiler.ir import text
from compiler.ir.aten import Call, Input, Program, Ref, Type
from compiler.ir.dtype import DTYPES, DType
from compiler.ir.expr import Expr, names
from compiler.ir.text import Scope, expression, fail, function, indent, literal, show_size, show_type, tensor_type
from compiler.ir.text import show as show_expr


def show(program: Program) -> str:
    """The program as text; `sizes` come first, as `n: size`."""
    arguments = [show_size(s) for s in program.sizes] + [_input(i) for i in program.inputs]
    lines = [f"def {program.name}({', '.join(arguments)}):"]
    for origin, calls in itertools.groupby(program.calls, lambda call: call.origin):
        own = [line for call in calls for line in _call_lines(call)]
        lines += indent([f'with decomposed("{origin}"):', *indent(own)] if origin else own)
    into = program.into or ("",) * len(program.outputs)
    results = [f"into({place}, {name})" if place else name for place, name in zip(into, program.outputs, strict=True)]
    return "\n".join([*lines, f"    return {', '.join(results) or '()'}"]) + "\n"


def show_call(call: Call) -> str:
    """The right-hand side of a call: `aten.add.Tensor(x, y, alpha=2)`."""
    words = [_argument(a) for a in call.args] + [f"{name}={_argument(value)}" for name, value in call.kwargs]
    return f"{call.op}({', '.join(words)})"


def _input(i: Input) -> str:
    return f"{i.name}: constant({_type(i.type)})" if i.constant else f"{i.name}: {_type(i.type)}"


def _type(t: Type) -> str:
    return show_type(t.dtype, t.shape, t.strides)


def _call_lines(call: Call) -> list[str]:
    match call.outputs, call.types:
        case (name,), (Type() as t,):
            return [f"{name}: {_type(t)} = {show_call(call)}"]
    typed = [f"{n}: {_type(t)}" for n, t in zip(call.outputs, call.types, strict=True) if t is not None]
    names_ = ", ".join(call.outputs)
    return [*typed, f"{names_} = {show_call(call)}" if names_ else show_call(call)]


def _argument(a: object) -> str:
    match a:
        case Ref(name):
            return name
        case tuple():
            return f"[{', '.join(map(_argument, a))}]"
        case DType():
            return str(a)
        case Expr():
            if not names(a):
                raise TypeError(f"{show_expr(a)}: a size that is known is written as an integer")
            return show_expr(a)
        case None | bool() | int() | float() | str():
            return repr(a)
    raise TypeError(f"{type(a).__name__} is not an argument of Torch IR")


def parse(source: str) -> Program:
    """A program from its text; raises TextError with line and column."""
    f = function(source)
    scope = Scope()
    sizes, arguments = text.sizes(f, scope)
    inputs = []
    for a in arguments:
        if a.annotation is None:
            raise fail(a, f"{a.arg} has no type")
        dtype, shape, strides, constant = tensor_type(a.annotation, scope)
        inputs.append(Input(a.arg, Type(dtype, shape, strides), constant))
    calls: list[Call] = []
    results: list[tuple[str, str]] = []
    declared: dict[str, Type] = {}
    for s, origin in _statements(f.body):
        match s:
            case ast.AnnAssign(ast.Name(name), kind, None):
                declared[name] = _parsed_type(kind, scope)
            case ast.AnnAssign(ast.Name(name), kind, ast.Call() as call):
                calls.append(_call((name,), (_parsed_type(kind, scope),), call, scope, origin))
            case ast.Assign([target], ast.Call() as call):
                targets = _names(target)
                calls.append(_call(targets, tuple(declared.pop(n, None) for n in targets), call, scope, origin))
            case ast.Expr(ast.Call() as call):
                calls.append(_call((), (), call, scope, origin))
            case ast.Return(ast.expr() as value):
                results = _results(value)
            case _:
                raise fail(s, "expected a type, a call, or `return`")
    if declared:
        raise fail(f, f"{sorted(declared)} have types, but no call defines them")
    into = tuple(place for place, _ in results)
    return Program(
        f.name, tuple(inputs), tuple(calls), tuple(name for _, name in results), sizes, into if any(into) else ()
    )


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """The statements of a program, each with the op whose decomposition contains it, or ""."""
    for s in body:
        match s:
            case ast.With([ast.withitem(ast.Call(ast.Name("decomposed"), [ast.Constant(str() as origin)], []))], own):
                yield from ((x, origin) for x in own)
            case _:
                yield s, ""


def _parsed_type(kind: ast.expr, scope: Scope) -> Type:
    dtype, shape, strides, _ = tensor_type(kind, scope)
    return Type(dtype, shape, strides)


def _names(e: ast.expr) -> tuple[str, ...]:
    match e:
        case ast.Name(name):
            return (name,)
        case ast.Tuple(parts):
            return tuple(name for p in parts for name in _names(p))
    raise fail(e, "expected names")


def _results(e: ast.expr) -> list[tuple[str, str]]:
    """Outputs, each with the input that it may overwrite, or ""."""
    match e:
        case ast.Call(ast.Name("into"), [ast.Name(place), ast.Name(name)], []):
            return [(place, name)]
        case ast.Tuple(parts):
            return [x for p in parts for x in _results(p)]
    return [("", name) for name in _names(e)]


def _call(outputs: tuple[str, ...], kinds: tuple[Type | None, ...], call: ast.Call, scope: Scope, origin: str) -> Call:
    kwargs = tuple((k.arg, _value(k.value, scope)) for k in call.keywords if k.arg is not None)
    return Call(outputs, kinds, ast.unparse(call.func), tuple(_value(a, scope) for a in call.args), kwargs, origin)


def _value(e: ast.expr, scope: Scope) -> object:
    number = literal(e)
    if number is not None:
        return number
    match e:
        case ast.Constant(None | str() as value):
            return value
        case ast.Name(name) if name in DTYPES:
            return DTYPES[name]
        case ast.Name(name) if name not in scope.sizes:
            return Ref(name)
        case ast.List(parts) | ast.Tuple(parts):
            return tuple(_value(p, scope) for p in parts)
    return expression(e, scope)
