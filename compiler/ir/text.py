"""Text of expressions, both ways: a subset of Python's syntax, read back by Python's own parser.

A symbolic size is declared where the tensors are: `n: size[2, 4096, 32]` is from 2 to 4096, 32 is to be expected.

A bare `1.0` is f32 and a bare `1` is i64; other literals name their type, `f64(1.0)`. A call of a type name on anything
else is a conversion. `a if c else b` evaluates only the side that it takes.
"""

from __future__ import annotations

import ast
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, boolean, f32, i64
from compiler.ir.expr import INFIX, OPS, Cast, Const, Expr, Load, Op, Select, Size, Var, cast, const, op, select
from compiler.ir.tensor import Tensor, row_major

P = TypeVar("P")
# Reductions whose names are keywords of Python.
WORD = {"and": "all", "or": "any"}
MEANT = {word: name for name, word in WORD.items()}
_RANK = {
    "<": 0, "<=": 0, ">": 0, ">=": 0, "==": 0, "!=": 0, "|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6,
}  # fmt: skip
_COMPARE = 0  # comparisons do not chain, so their operands bind tighter
_UNARY, _ATOM = 7, 9
_SYMBOL = {name: symbol for symbol, name in INFIX.items()}


_PARSING = threading.RLock()


def syntax(text: str) -> ast.Module:
    """Python's syntax tree, parsed by one thread at a time: CPython 3.11 keeps one recursion depth for all threads."""
    with _PARSING:
        return ast.parse(text)


class TextError(ValueError):
    """Text that our printers do not write; the message holds line and column."""


def show(e: Expr, rank: int = -1) -> str:
    """The text of an expression, in parentheses if the operator around it, of `rank`, needs them."""
    match e:
        case Const(value, dtype):
            return _literal(value, dtype, rank)
        case Var(name):
            return name
        case Load(buffer, index):
            return f"{buffer}[{', '.join(map(show, index)) or '()'}]"
        case Cast(arg, dtype):
            return f"{dtype}({show(arg)})"
        case Select(cond, then, other):
            text = f"{show(then, 0)} if {show(cond, 0)} else {show(other, 0)}"
            return f"({text})" if rank >= 0 else text
        case Op("neg", (a,)):
            return _wrap(f"-{show(a, _UNARY + (type(a) is Const))}", _UNARY, rank)
        case Op("not", (a,)):
            return _wrap(f"~{show(a, _UNARY)}", _UNARY, rank)
        case Op(name, (a, b)) if name in _SYMBOL:
            symbol = _SYMBOL[name]
            own_rank = _RANK[symbol]
            left = own_rank + 1 if own_rank == _COMPARE else own_rank
            return _wrap(f"{show(a, left)} {symbol} {show(b, own_rank + 1)}", own_rank, rank)
        case Op(name, args):
            return f"{name}({', '.join(map(show, args))})"
    raise TypeError(f"{type(e).__name__} is not an expression")


def _wrap(text: str, own_rank: int, rank: int) -> str:
    return f"({text})" if own_rank < rank else text


def _literal(value: bool | int | float, dtype: DType, rank: int) -> str:
    if dtype is boolean:
        return str(bool(value))
    text = repr(value)
    if dtype is f32 or dtype is i64:
        return f"({text})" if text.startswith("-") and rank > _UNARY else text
    return f"{dtype}({text})"


def show_type(dtype: DType, shape: tuple[Expr, ...], strides: tuple[Expr, ...] | None = None) -> str:
    """`f32[3, 4]`; with strides if they are not row-major: `f32[3: 1, 4: 3]`; a scalar is `f32[()]`."""
    if strides is None or strides == row_major(shape):
        return f"{dtype}[{', '.join(map(show, shape)) or '()'}]"
    return f"{dtype}[{', '.join(f'{show(n)}: {show(s)}' for n, s in zip(shape, strides, strict=True))}]"


def show_tensor(t: Tensor) -> str:
    text = show_type(t.dtype, t.shape, t.strides)
    return f"{t.name}: constant({text})" if t.constant else f"{t.name}: {text}"


def show_seen(t: Tensor, known: Mapping[str, Tensor]) -> str:
    """A parameter: its name, with its type if that differs from the tensor known by the name."""
    return t.name if known.get(t.name) == t else f"view({t.name}, {show_type(t.dtype, t.shape, t.strides)})"


class Scope:
    """The meaning of names while parsing: scalar variables by type, buffers by element type, symbolic sizes."""

    def __init__(
        self, scalars: Mapping[str, DType] = {}, buffers: Mapping[str, DType] = {}, sizes: Mapping[str, Size] = {}
    ) -> None:
        self.scalars: dict[str, DType] = dict(scalars)
        self.buffers: dict[str, DType] = dict(buffers)
        self.sizes: dict[str, Size] = dict(sizes)

    def inner(self) -> Scope:
        """A nested scope: names bound in it end with it."""
        return Scope(self.scalars, self.buffers, self.sizes)


def fail(node: ast.AST, why: str) -> TextError:
    return TextError(
        f"line {getattr(node, 'lineno', '?')}, column {getattr(node, 'col_offset', 0) + 1}: {why}: {ast.unparse(node)}"
    )


_BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_COMPARISON = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def expression(e: ast.expr, scope: Scope) -> Expr:
    """An expression from its syntax tree; raises TextError."""
    try:
        return _expression(e, scope)
    except (TypeError, ValueError) as problem:
        if isinstance(problem, TextError):
            raise
        raise fail(e, str(problem)) from problem


def _expression(e: ast.expr, scope: Scope) -> Expr:
    number = literal(e)
    if number is not None:
        return const(number, boolean if isinstance(number, bool) else i64 if isinstance(number, int) else f32)
    match e:
        case ast.Name(name) if name in scope.sizes:
            return scope.sizes[name]
        case ast.Name(name) if name in scope.scalars:
            return Var(name, scope.scalars[name])
        case ast.Name(name):
            raise fail(e, f"{name} is not defined here")
        case ast.Subscript(ast.Name(name), index):
            if name not in scope.buffers:
                raise fail(e, f"{name} is not a buffer here")
            return Load(name, indices(index, scope), scope.buffers[name])
        case ast.IfExp(cond, then, other):
            return select(*(expression(x, scope) for x in (cond, then, other)))
        case ast.BinOp(a, how, b):
            return op(INFIX[_BINARY[type(how)]], expression(a, scope), expression(b, scope))
        case ast.Compare(a, [how], [b]):
            return op(INFIX[_COMPARISON[type(how)]], expression(a, scope), expression(b, scope))
        case ast.UnaryOp(ast.USub(), a):
            return op("neg", expression(a, scope))
        case ast.UnaryOp(ast.Invert(), a):
            return op("not", expression(a, scope))
        case ast.Call(func, args):
            return _call(e, func, args, scope)
    raise fail(e, "not an expression")


def _call(e: ast.expr, func: ast.expr, args: list[ast.expr], scope: Scope) -> Expr:
    name = func.id if isinstance(func, ast.Name) else ""
    if name in OPS:
        return op(name, *(expression(a, scope) for a in args))
    try:
        dtype = dt.parse(name)
    except (KeyError, ValueError):
        raise fail(e, f"{name or ast.unparse(func)} is neither an operation nor a type") from None
    if len(args) != 1:
        raise fail(e, f"{name} converts one value")
    number = literal(args[0])
    if number is not None and dtype not in dt.STORAGE_ONLY:
        return const(number, dtype)
    return cast(expression(args[0], scope), dtype)


def literal(e: ast.expr) -> bool | int | float | None:
    """The number that `e` spells, or None."""
    match e:
        case ast.Constant(bool() | int() | float() as v):
            return v
        case ast.Name("inf"):
            return math.inf
        case ast.Name("nan"):
            return math.nan
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as v)):
            return -v
        case ast.UnaryOp(ast.USub(), ast.Name("inf")):
            return -math.inf
    return None


def indices(e: ast.expr, scope: Scope) -> tuple[Expr, ...]:
    """The index list of a subscript; `()` for a scalar."""
    parts = e.elts if isinstance(e, ast.Tuple) else [e]
    return tuple(expression(p, scope) for p in parts)


def tensor_type(e: ast.expr, scope: Scope) -> tuple[DType, tuple[Expr, ...], tuple[Expr, ...], bool]:
    """Element type, shape, strides and constancy from a type's syntax tree."""
    match e:
        case ast.Call(ast.Name("constant"), [inner]):
            dtype, shape, strides, _ = tensor_type(inner, scope)
            return dtype, shape, strides, True
        case ast.Subscript(ast.Name(name), index) if name in dt.DTYPES:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            sizes = [p.lower if isinstance(p, ast.Slice) else p for p in parts]
            shape = tuple(expression(s, scope) for s in sizes if s is not None)
            steps = [p.upper for p in parts if isinstance(p, ast.Slice)]
            strides = tuple(expression(s, scope) for s in steps if s is not None) if steps else row_major(shape)
            return dt.DTYPES[name], shape, strides, False
    raise fail(e, "not a tensor type")


def tensor(a: ast.arg, scope: Scope) -> Tensor:
    if a.annotation is None:
        raise TextError(f"line {a.lineno}: {a.arg} has no type")
    return Tensor(a.arg, *tensor_type(a.annotation, scope))


def seen(e: ast.expr, known: Mapping[str, Tensor], scope: Scope) -> Tensor:
    """A parameter from its syntax tree; the inverse of `show_seen`."""
    match e:
        case ast.Name(name) if name in known:
            return known[name]
        case ast.Call(ast.Name("view"), [ast.Name(name), kind]) if name in known:
            dtype, shape, strides, _ = tensor_type(kind, scope)
            return known[name].replace(dtype=dtype, shape=shape, strides=strides)
    raise fail(e, f"{ast.unparse(e)!r} is not a tensor of this program, nor a view of one")


def show_size(s: Size) -> str:
    if s is Size(s.name):
        return f"{s.name}: size"
    return f"{s.name}: size[{s.low}, {'inf' if s.high is None else s.high}, {s.hint}]"


def sizes(f: ast.FunctionDef, scope: Scope) -> tuple[tuple[Size, ...], list[ast.arg]]:
    """The sizes among the arguments, which are added to `scope`, and the other arguments."""
    made: dict[str, Size] = {}
    others: list[ast.arg] = []
    for a in f.args.args:
        match a.annotation:
            case ast.Name("size"):
                made[a.arg] = Size(a.arg)
            case ast.Subscript(ast.Name("size"), ast.Tuple([low, high, expected])):
                ends = [literal(x) for x in (low, high, expected)]
                if not isinstance(ends[0], int) or not isinstance(ends[2], int) or isinstance(ends[1], bool | None):
                    raise fail(a, "a size is `size[least, most, expected]`")
                made[a.arg] = Size(a.arg, i64, ends[0], ends[1] if isinstance(ends[1], int) else None, ends[2])
            case ast.Subscript(ast.Name("size")):
                raise fail(a, "a size is `size[least, most, expected]`")
            case _:
                others.append(a)
    scope.sizes |= made
    return tuple(made.values()), others


def function(text: str) -> ast.FunctionDef:
    """The single function that a program's text consists of."""
    try:
        tree = syntax(text)
    except SyntaxError as e:
        raise TextError(f"line {e.lineno}, column {e.offset}: {e.msg}") from e
    match tree.body:
        case [ast.FunctionDef() as f]:
            return f
    raise TextError("expected exactly one `def`")


def indent(lines: list[str]) -> list[str]:
    return ["    " + x for x in lines]


# ---- programs


def show_program(
    name: str, sizes: Iterable[Size], inputs: Iterable[Tensor], outputs: Sequence[Tensor], body: list[str]
) -> str:
    """A `def`: sizes and inputs before the star, outputs after it."""
    arguments = [*map(show_size, sizes), *map(show_tensor, inputs)]
    arguments += ["*", *map(show_tensor, outputs)] if outputs else []
    return "\n".join([f"def {name}({', '.join(arguments)}):", *indent(body or ["pass"])]) + "\n"


Words = Mapping[str, ast.expr]
Part = Callable[[str, tuple[Tensor, ...], Words, list[ast.stmt], Scope], P]


@dataclass(frozen=True)
class Parsed(Generic[P]):
    """A parsed `def` of temporaries and parts; `zeros` names the temporaries that are zero before a run."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temps: tuple[Tensor, ...]
    parts: tuple[P, ...]
    sizes: tuple[Size, ...]
    zeros: tuple[str, ...]


def parse_program(source: str, word: str, part: Part[P]) -> Parsed[P]:
    """A program from its text; raises TextError with line and column.

    Its parts are `with word("name", [parameters], key=..):`; `part` receives the name, the parameters, the keys, the
    statements and the scope.
    """
    f = function(source)
    scope = Scope()
    declared, arguments = sizes(f, scope)
    inputs = tuple(tensor(a, scope) for a in arguments)
    outputs = tuple(tensor(a, scope) for a in f.args.kwonlyargs)
    known = {t.name: t for t in (*inputs, *outputs)}
    temps: list[Tensor] = []
    zeros: list[str] = []
    parts: list[P] = []
    for s in f.body:
        match s:
            case ast.AnnAssign(ast.Name(name), kind, None | ast.Constant(0) as start):
                temps.append(Tensor(name, *tensor_type(kind, scope)))
                known[name] = temps[-1]
                zeros += [name] if start is not None else []
            case ast.With(
                [ast.withitem(ast.Call(ast.Name(called), [ast.Constant(str() as name), ast.List(params)], words))], body
            ) if called == word:
                own = tuple(seen(p, known, scope) for p in params)
                inner = scope.inner()
                inner.buffers |= {t.name: t.dtype for t in own}
                parts.append(part(name, own, {w.arg or "": w.value for w in words}, body, inner))
            case ast.Pass():
                pass
            case _:
                raise fail(s, f'expected a temporary or `with {word}("name", [parameters], writes=[..]):`')
    return Parsed(f.name, inputs, outputs, tuple(temps), tuple(parts), declared, tuple(zeros))
