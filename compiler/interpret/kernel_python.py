"""Translation of a function of Kernel IR to Python source with every access checked; interpret/kernel.py runs it.

A scalar float is a NumPy scalar of its type, an integer a Python int wrapped to its type after each operation, a vector
a NumPy array. `b_x` is the memory of buffer x, `m_x` the same as a memoryview (whose elements are Python's own types),
`n_x` its size, and `w_x`, for buffers that begin undefined, one byte per element that says whether it was written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.interpret import scalar
from compiler.interpret.grid import InterpretError
from compiler.ir import kernel as k
from compiler.ir.dtype import EIGHTHS, DType, bf16, f32
from compiler.ir.expr import COMBINE, Cast, Const, Expr, Load, Op, Select, Var, cast, op

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_WRAPS = ("add", "sub", "mul", "neg", "abs", "floordiv", "truncdiv", "gcd", "shl", "not")


@dataclass
class Source:
    """Python text under construction: its lines, its literals by name, and the buffers in scope."""

    types: dict[str, DType]
    tracked: set[str]
    lines: list[str] = field(default_factory=list)
    literals: dict[str, Any] = field(default_factory=dict)
    depth: int = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def literal(self, value: Any) -> str:
        """A name for a NumPy value that is created once."""
        key = (str(value.dtype), value.shape, value.tobytes())
        name = f"k_{len(self.literals)}"
        known = next((n for n, v in self.literals.items() if (str(v.dtype), v.shape, v.tobytes()) == key), None)
        if known is None:
            self.literals[name] = value
        return known or name


def translate(f: k.Function, sizes: tuple[str, ...], undefined: set[str]) -> tuple[str, dict[str, Any]]:
    """Source of `def run(..)` and the literals it refers to; `undefined` are the parameters that begin undefined."""
    s = Source({p.name: p.dtype for p in f.params}, set(undefined))
    _body(s, f.body)
    params = [f"v_{n}" for n in sizes] + [f"{letter}_{p.name}" for p in f.params for letter in "bmnw"]
    return "\n".join([f"def run({', '.join(params)}):", *s.lines, "    return None"]) + "\n", s.literals


# ---- statements


def _body(s: Source, body: tuple[k.Stmt, ...]) -> None:
    types, tracked = dict(s.types), set(s.tracked)
    for statement in body:
        _statement(s, statement)
    s.types, s.tracked = types, tracked


def _block(s: Source, head: str, body: tuple[k.Stmt, ...]) -> None:
    s.line(head)
    s.depth += 1
    s.line("pass")
    _body(s, body)
    s.depth -= 1


def _statement(s: Source, statement: k.Stmt) -> None:
    match statement:
        case k.Declare(name, value) | k.Assign(name, value):
            s.line(f"v_{name} = {_copied_value(s, value)}")
        case k.Store(buffer, index, value, "set"):
            _store(s, buffer, index, value)
        case k.Store(buffer, index, value, how):
            _store(s, buffer, index, _combine(how, Load(buffer, (index,), value.dtype), value))
        case k.For(var, start, stop, step, body, mark):
            places = f"range({_index(s, start)}, {_index(s, stop)}, {step})"
            # Independent iterations may run in any order; running backwards exposes dependent ones.
            _block(s, f"for v_{var} in {f'reversed({places})' if mark == 'parallel' else places}:", body)
        case k.If(cond, body, orelse):
            _block(s, f"if {_value(s, cond)}:", body)
            if orelse:
                _block(s, "else:", orelse)
        case k.Array(name, dtype, size, _, _):
            s.types[name] = dtype
            s.tracked.add(name)
            s.line(f"b_{name}, m_{name}, n_{name}, w_{name} = array({size}, {str(dtype)!r})")
        case k.Call(function, template, args, _):
            if any(isinstance(a, k.Map) for a in args):
                raise InterpretError(f"{function} takes a tensor map, which programs for a CPU have none of")
            shown = ", ".join(_argument(s, a) for a in args if not isinstance(a, k.Map))
            s.line(f"call({function!r}, {template!r}, ({shown}{',' if args else ''}))")
        case k.Comment() | k.Barrier():  # one thread at a time: it never waits
            pass
        case _:
            raise InterpretError(f"{type(statement).__name__} is not a Kernel IR statement")


def _store(s: Source, buffer: str, index: Expr, value: Expr) -> None:
    lanes, dtype = value.dtype.lanes, value.dtype
    s.line(f"_v = {_value(s, value)}")
    s.line(f"_i = {_index(s, index)}")
    s.line(f"if not 0 <= _i <= n_{buffer} - {lanes}: outside({buffer!r}, _i, {lanes}, n_{buffer}, 'stores')")
    memory = f"b_{buffer}" if dtype.is_float or lanes > 1 else f"m_{buffer}"
    at = "_i" if lanes == 1 else f"_i:_i + {lanes}"
    s.line(f"{memory}[{at}] = _v")
    if buffer in s.tracked:
        s.line(f"w_{buffer}[{at}] = {1 if lanes == 1 else repr(bytes([1]) * lanes)}")


def _combine(how: str, old: Expr, value: Expr) -> Expr:
    dtype = value.dtype
    if dtype.is_float and dtype.bits == 16:
        wide = f32.replace(lanes=dtype.lanes)
        return Cast(op(COMBINE[how], cast(old, wide), cast(value, wide)), dtype)
    return op(COMBINE[how], old, value)


def _argument(s: Source, a: Expr | k.Address) -> str:
    if isinstance(a, Expr):
        return _value(s, a)
    n = a.buffer
    return f"pointer({n!r}, b_{n}, {_index(s, a.index)}, {f'w_{n}' if n in s.tracked else 'None'})"


# ---- expressions


def _copied_value(s: Source, e: Expr) -> str:
    """A value that later stores do not change: the load of a vector is a view of memory."""
    text = _value(s, e)
    return f"{text}.copy()" if e.dtype.lanes > 1 and isinstance(e, Load | Select | Cast) else text


def _index(s: Source, e: Expr) -> str:
    """An integer without wrap-around: the bounds check of its use finds any overflow."""
    match e:
        case Op("add" | "sub" | "mul" as name, (a, b)):
            return f"({_index(s, a)} {_INFIX[name]} {_index(s, b)})"
    return _value(s, e)


def _value(s: Source, e: Expr) -> str:
    match e:
        case Const(value, dtype):
            if dtype.lanes > 1:
                return s.literal(np.full(dtype.lanes, value, scalar.storage(dtype.replace(lanes=1))))
            return s.literal(scalar.storage(dtype).type(value)) if dtype.is_float else repr(value)
        case Var(name):
            return f"v_{name}"
        case Load(buffer, (index,), dtype):
            return _load(s, buffer, index, dtype)
        case Select(cond, Load(buffer, (index,)), other) if cond.dtype.lanes > 1:
            w = f"w_{buffer}" if buffer in s.tracked else "None"
            at = f"{_index(s, index)}, {_value(s, cond)}, {_value(s, other)}"
            return f"masked({buffer!r}, b_{buffer}, {w}, {at})"
        case Select(cond, then, other):
            return f"({_value(s, then)} if {_value(s, cond)} else {_value(s, other)})"
        case Cast(arg, dtype):
            return _cast(_value(s, arg), arg.dtype, dtype)
        case Op(name, args):
            return _vectors(s, name, args) if args[-1].dtype.lanes > 1 else _scalars(s, name, args)
        case k.Broadcast(arg, lanes):
            if isinstance(arg, Const):
                return s.literal(np.full(lanes, arg.value, scalar.storage(arg.dtype)))
            return f"full({lanes}, {_value(s, arg)}, {str(arg.dtype)!r})"
        case k.Ramp(start, step, lanes):
            return f"({_value(s, start)} + {s.literal(np.arange(lanes, dtype=scalar.storage(start.dtype)) * step)})"
        case k.Gather(buffer, index, _):
            w = f"w_{buffer}" if buffer in s.tracked else "None"
            return f"gather({buffer!r}, b_{buffer}, {w}, {_value(s, index)})"
        case k.Across(how, arg):
            return f"across_{how}({_value(s, arg)})"
    raise InterpretError(f"{type(e).__name__} has no meaning without a machine")


def _load(s: Source, buffer: str, index: Expr, dtype: DType) -> str:
    lanes, tracked = dtype.lanes, buffer in s.tracked
    memory = f"b_{buffer}" if dtype.is_float or lanes > 1 else f"m_{buffer}"
    at = "_i" if lanes == 1 else f"_i:_i + {lanes}"
    written = (
        f" and {f'w_{buffer}[_i]' if lanes == 1 else f'w_{buffer}.find(0, _i, _i + {lanes}) < 0'}" if tracked else ""
    )
    wrong = f"outside({buffer!r}, _i, {lanes}, n_{buffer}, 'loads')"
    return f"({memory}[{at}] if 0 <= (_i := {_index(s, index)}) <= n_{buffer} - {lanes}{written} else {wrong})"


def _scalars(s: Source, name: str, args: tuple[Expr, ...]) -> str:
    dtype = args[-1].dtype
    shown = [_value(s, a) for a in args]
    if dtype.is_integer:
        return _integers(name, shown, dtype)
    if name == "neg":
        return f"(-{shown[0]})"
    if name == "not":
        return f"(not {shown[0]})"
    if name in _INFIX:
        return f"({shown[0]} {_INFIX[name]} {shown[1]})"
    return f"{'bool' if dtype.kind == 'bool' else 'float'}_{name}({', '.join(shown)})"


def _integers(name: str, shown: list[str], dtype: DType) -> str:
    if name in ("neg", "not"):
        text = f"({'-' if name == 'neg' else '~'}{shown[0]})"
    elif name in _INFIX:
        text = f"({shown[0]} {_INFIX[name]} {shown[1]})"
    elif name in ("shl", "shr"):
        text = f"int_{name}({shown[0]}, {shown[1]}, {dtype.bits})"
    else:
        text = f"int_{name}({', '.join(shown)})"
    return f"wrap_{dtype}({text})" if name in _WRAPS else text


def _vectors(s: Source, name: str, args: tuple[Expr, ...]) -> str:
    if name in _INFIX:
        settled = [not isinstance(a, k.Broadcast) for a in args]
        # NumPy broadcasts a scalar by itself, at the type of the array.
        bare = [a.arg if isinstance(a, k.Broadcast) and any(settled) else a for a in args]
        return f"({_value(s, bare[0])} {_INFIX[name]} {_value(s, bare[1])})"
    shown = ", ".join(_value(s, a) for a in args)
    return f"vector_{name}({shown})"


def _cast(text: str, source: DType, target: DType) -> str:
    if source is target:
        return text
    one, to = source.replace(lanes=1), target.replace(lanes=1)
    if target.lanes > 1:
        simple = to.kind != "bool" and not (to.is_float and to.bits <= 16) and not (source.is_float and to.is_integer)
        if to is f32 and one in (bf16, *EIGHTHS):
            return text  # held as the f32 that equals it
        return f"{text}.astype(t_{to})" if simple else f"convert({text}, {str(one)!r}, {str(to)!r})"
    if to.kind == "bool":
        return f"bool({text} != 0)"
    if to.is_float:
        if source.is_integer:
            return f"float_from_int({text}, {str(to)!r})"
        middle = f"t_f32({text})" if to.bits <= 16 else text
        return f"round_{to}({middle})" if to in (bf16, *EIGHTHS) else f"t_{to}({middle})"
    if source.is_float:
        return f"int_from_float({text}, {to.bits}, {to.kind == 'int'})"
    return f"int({text})" if source.kind == "bool" else f"wrap_{to}({text})"
