"""Scalar expressions, shared by all IRs from Tensor IR down, and the table of scalar operations.

Every expression knows its type. Operations take arguments of one type (rows of `OPS` state the exceptions); conversions
are explicit `Cast`s. Values of `dtype.STORAGE_ONLY` may only be loaded, cast, selected and stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, boolean, i64
from compiler.ir.functions import FUNCTIONS
from compiler.ir.node import Node

N = TypeVar("N", bound=Node)
MOST_NODES = 1000  # of a value as text


class IllTyped(TypeError):
    """An operation applied to argument types that it does not support."""


class Expr(Node):
    """A value. Python's arithmetic operators build and fold index expressions and typed arithmetic alike."""

    @property
    def dtype(self) -> DType:
        """The field `type`; classes without such a field override this."""
        return self.type  # type: ignore[attr-defined, no-any-return]

    def __add__(self, other: Expr | int | float) -> Expr:
        return op("add", self, other)

    def __radd__(self, other: Expr | int | float) -> Expr:
        return op("add", like(other, self), self)

    def __sub__(self, other: Expr | int | float) -> Expr:
        return op("sub", self, other)

    def __rsub__(self, other: Expr | int | float) -> Expr:
        return op("sub", like(other, self), self)

    def __mul__(self, other: Expr | int | float) -> Expr:
        return op("mul", self, other)

    def __rmul__(self, other: Expr | int | float) -> Expr:
        return op("mul", like(other, self), self)

    def __truediv__(self, other: Expr | int | float) -> Expr:
        return op("div", self, other)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return op("floordiv", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return op("mod", self, other)

    def __neg__(self) -> Expr:
        return op("neg", self)


class Const(Expr):
    """A literal; `value` is a Python bool, int or float according to the type, already rounded to it."""

    value: bool | int | float
    type: DType


class Var(Expr):
    """An axis, a size, or a name bound by a statement."""

    name: str
    type: DType = i64


class Size(Var):
    """A size known only when the program is called: an integer from `low` to `high` (None: unbounded).

    `hint` is the expected value, for choices that only affect speed.
    """

    low: int = 0
    high: int | None = None
    hint: int = 64


class Op(Expr):
    """A row of `OPS` applied to arguments; construct it with `op`, which checks types and folds integers."""

    name: str
    args: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        row = OPS[self.name]
        if row.result == "bool":
            return boolean.replace(lanes=self.args[0].dtype.lanes)
        return self.args[-1].dtype


class Cast(Expr):
    """Convert: float to integer truncates, integer to a narrower integer wraps, anything to bool is `!= 0`."""

    arg: Expr
    type: DType


class Load(Expr):
    """One element of a tensor or buffer; the index must be within its shape."""

    buffer: str
    index: tuple[Expr, ...]
    type: DType


class Select(Expr):
    """`then if cond else other`: only the chosen side is evaluated, so it may guard a load (`where` evaluates both)."""

    cond: Expr
    then: Expr
    other: Expr

    @property
    def dtype(self) -> DType:
        return self.then.dtype


@dataclass(frozen=True)
class Row:
    """The signature of a scalar operation. `kinds`: which of float, int, uint, bool its arguments may be."""

    arity: int
    kinds: str
    result: str = "same"  # "same" as the last argument, or "bool"
    infix: str = ""


_ANY, _NUM, _INT, _FLOAT, _BITS = "float int uint bool", "float int uint", "int uint", "float", "int uint bool"
# fmt: off
OPS: dict[str, Row] = {
    # arithmetic; integers wrap; `div` is true division; `floordiv` and `mod` round to -inf, `truncdiv` and `rem` to 0
    "add": Row(2, _NUM, infix="+"), "sub": Row(2, _NUM, infix="-"), "mul": Row(2, _NUM, infix="*"),
    "div": Row(2, _FLOAT, infix="/"), "floordiv": Row(2, _NUM, infix="//"), "mod": Row(2, _NUM, infix="%"),
    "truncdiv": Row(2, _INT), "rem": Row(2, _NUM), "gcd": Row(2, _INT),
    "neg": Row(1, _NUM), "abs": Row(1, _NUM), "sign": Row(1, _NUM),
    # a NaN argument gives NaN
    "min": Row(2, _ANY), "max": Row(2, _ANY),
    "lt": Row(2, _ANY, "bool", "<"), "le": Row(2, _ANY, "bool", "<="), "gt": Row(2, _ANY, "bool", ">"),
    "ge": Row(2, _ANY, "bool", ">="), "eq": Row(2, _ANY, "bool", "=="), "ne": Row(2, _ANY, "bool", "!="),
    "and": Row(2, _BITS, infix="&"), "or": Row(2, _BITS, infix="|"), "xor": Row(2, _BITS, infix="^"),
    "not": Row(1, _BITS), "shl": Row(2, _INT, infix="<<"), "shr": Row(2, _INT, infix=">>"),
    "where": Row(3, _ANY), "isnan": Row(1, _FLOAT, "bool"), "signbit": Row(1, _FLOAT, "bool"),
    # its second argument, or 0 and a failing program if the first does not hold; like a load, it is evaluated only
    # where it is needed
    "require": Row(2, _ANY),
    "floor": Row(1, _FLOAT), "ceil": Row(1, _FLOAT), "trunc": Row(1, _FLOAT),
    "round": Row(1, _FLOAT),  # ties to even
    # round to 10 bits of fraction, ties away from zero, as tensor cores read f32; for a NaN x, x - tf32(x) is NaN
    "tf32": Row(1, _FLOAT),
    "sqrt": Row(1, _FLOAT), "fma": Row(3, _FLOAT),
    **{name: Row(row.arity, _FLOAT) for name, row in FUNCTIONS.items()},
}
# fmt: on
INFIX = {row.infix: name for name, row in OPS.items() if row.infix}

# Reductions: the scalar operation that combines two partial results.
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def identity(reduction: str, dtype: DType) -> Const:
    """The initial value of `reduction`. For `max` of floats it is -inf: NaN still wins, as in torch."""
    low, high = (-math.inf, math.inf) if dtype.is_float else dt.integer_range(dtype)
    value = {"sum": 0, "prod": 1, "max": low, "min": high, "and": True if dtype is boolean else -1, "or": 0}[reduction]
    return const(value, dtype)


def const(value: bool | int | float, dtype: DType = i64) -> Const:
    """A literal of `dtype`; raises ValueError if the value does not fit."""
    if dtype.is_float:
        return Const(dt.rounded(float(value), dtype), dtype)
    if dtype is boolean:
        return Const(bool(value), dtype)
    low, high = dt.integer_range(dtype)
    if not low <= value <= high or value != int(value):
        raise ValueError(f"{value} is not a value of type {dtype}")
    return Const(int(value), dtype)


def like(value: Expr | bool | int | float, other: Expr) -> Expr:
    """`value` itself, or a literal of `other`'s type."""
    return value if isinstance(value, Expr) else const(value, other.dtype)


def op(name: str, *args: Expr | bool | int | float) -> Expr:
    """`OPS[name]` applied to `args`, with types checked, integer literals folded and integer identities dropped.

    A float minus itself becomes `abs(x) * 0.0`.
    """
    model = next((a for a in reversed(args) if isinstance(a, Expr)), None)
    if model is None:
        raise TypeError(f"{name}: no argument has a type")
    return _op(name, tuple(a if isinstance(a, Expr) else const(a, model.dtype) for a in args))


@functools.lru_cache(maxsize=1 << 14)
def _op(name: str, exprs: tuple[Expr, ...]) -> Expr:
    problem = type_error(name, exprs)
    if problem:
        raise IllTyped(problem)
    if name == "neg" and isinstance(exprs[0], Const) and exprs[0].dtype.is_float:
        return Const(-exprs[0].value, exprs[0].dtype)
    if name == "require" and isinstance(exprs[0], Const) and exprs[0].value:
        return exprs[1]
    if exprs[-1].dtype.is_float and exprs[-1].dtype.lanes == 1 and _cancels(name, exprs):
        return Op("mul", (_op("abs", exprs[:1]), Const(0.0, exprs[0].dtype)))
    if exprs[-1].dtype.is_integer and exprs[-1].dtype.lanes == 1:
        folded = _fold(name, exprs)
        if folded is not None:
            return folded
    return Op(name, exprs)


def _cancels(name: str, args: tuple[Expr, ...]) -> bool:
    """Whether a number is subtracted from itself: 0, or NaN if it is not finite.

    As a difference, a compiler could contract it with a product: `x * y - x * y` to `fma(x, y, -(x * y))`, which is the
    rounding error of the product.
    """
    return (name == "sub" and args[0] is args[1]) or (name == "add" and args[1] is _op("neg", args[:1]))


@functools.lru_cache(maxsize=1 << 14)
def type_error(name: str, args: tuple[Expr, ...]) -> str:
    """Why `name` cannot be applied to `args`; empty if it can."""
    row = OPS.get(name)
    if row is None:
        return f"unknown operation {name!r}"
    types = [a.dtype for a in args]
    if len(args) != row.arity:
        return f"{name} takes {row.arity} arguments, not {len(args)}"
    if name in ("where", "require"):
        if types[0].kind != "bool":
            return f"{name} needs a bool condition, not {types[0]}"
        if name == "require" and types[0].lanes != types[1].lanes:
            return f"require({_show_types(args)}): as many conditions as values"
        types = types[1:]
    elif short := [t.name for t in types if t.replace(lanes=1) in dt.STORAGE_ONLY]:
        return f"{name}({_show_types(args)}): {short[0]} is a storage type, cast to f32 first"
    if len(set(types)) != 1:
        return f"{name}({_show_types(args)}): the types differ"
    return "" if types[0].kind in row.kinds else f"{name} is not defined for {types[0]}"


def _show_types(args: tuple[Expr, ...]) -> str:
    return ", ".join(str(a.dtype) for a in args)


def _wrap(value: int, dtype: DType) -> Const:
    low, high = dt.integer_range(dtype)
    return Const((value - low) % (high - low + 1) + low, dtype)


_FOLD: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else None, "mod": lambda a, b: a % b if b else None,
    "min": min, "max": max, "neg": lambda a: -a, "abs": abs,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip


def _fold(name: str, args: tuple[Expr, ...]) -> Expr | None:
    if name in _FOLD and all(isinstance(a, Const) for a in args):
        value: Any = _FOLD[name](*(a.value for a in args if isinstance(a, Const)))
        if value is not None:
            return Const(value, boolean) if isinstance(value, bool) else _wrap(value, args[0].dtype)
    values = tuple(a.value if isinstance(a, Const) else None for a in args)
    match name, args, values:
        case ("add", (a, _), (_, 0)) | ("add", (_, a), (0, _)) | ("sub", (a, _), (_, 0)):
            return a
        case ("mul" | "floordiv", (a, _), (_, 1)) | ("mul", (_, a), (1, _)):
            return a
        case ("mul", (*_, a), (0, _) | (_, 0)) | ("mod", (_, a), (_, 1)):
            return Const(0, a.dtype)
    return None


def _widens(narrow: DType, wide: DType) -> bool:
    """Whether `wide` represents every value of the floating type `narrow`, and has more bits."""
    return wide.is_float and narrow.bits < wide.bits


def cast(value: Expr, dtype: DType) -> Expr:
    """`value` as `dtype`: folded if it is a literal, without a cast if it has that type or was widened from it."""
    if value.dtype is dtype:
        return value
    if isinstance(value, Cast) and value.arg.dtype is dtype and dtype.is_float and _widens(dtype, value.dtype):
        return value.arg
    if isinstance(value, Const) and dtype not in dt.STORAGE_ONLY and dtype.lanes == 1:
        folded = _cast_literal(value.value, dtype)
        if folded is not None:
            return folded
    return Cast(value, dtype)


def _cast_literal(value: bool | int | float, dtype: DType) -> Const | None:
    if dtype.is_float:
        return const(value, dtype)
    if dtype is boolean:
        return Const(bool(value), dtype)
    if not math.isfinite(value) or not -(2**63) <= int(value) < 2**63:
        return None  # target-dependent
    return _wrap(int(value), dtype)


def select(cond: Expr, then: Expr, other: Expr) -> Expr:
    """`then if cond else other`, folded if the condition is a literal."""
    if isinstance(cond, Const):
        return then if cond.value else other
    if then.dtype is not other.dtype:
        raise TypeError(f"select: the types differ ({then.dtype}, {other.dtype})")
    return then if then is other else Select(cond, then, other)


def both(*conditions: Expr) -> Expr:
    """The conjunction of bool expressions; literals are folded."""
    left = [c for c in conditions if not (isinstance(c, Const) and c.value)]
    if any(isinstance(c, Const) for c in left) or not left:
        return Const(not left, boolean)
    out = left[0]
    for c in left[1:]:
        out = op("and", out, c)
    return out


def requiring(value: Expr, unused: Iterable[Expr]) -> Expr:
    """`value`, with the `require` conditions of expressions that it replaces."""
    conditions = [n.args[0] for e in unused for n in e.walk() if isinstance(n, Op) and n.name == "require"]
    return functools.reduce(lambda v, c: op("require", c, v), dict.fromkeys(conditions), value)


def dim(value: Expr | int) -> Expr:
    """A size or index: a Python int becomes an i64 literal."""
    return value if isinstance(value, Expr) else Const(int(value), i64)


def canonical(node: Any) -> Any:
    """A rebuilt expression as its constructor function would have made it; other nodes unchanged."""
    match node:
        case Op(name, args):
            return _op(name, args)
        case Cast(arg, dtype):
            return cast(arg, dtype)
        case Select(cond, then, other):
            return select(cond, then, other)
    return node


@overload
def substitute(node: Expr, table: Mapping[Any, Any]) -> Expr: ...
@overload
def substitute(node: tuple[N, ...], table: Mapping[Any, Any]) -> tuple[N, ...]: ...
def substitute(node: Any, table: Mapping[Any, Any]) -> Any:
    """`node`, or each of a tuple, with every node found in `table` replaced; replacements are not searched again."""
    done: dict[Node, Any] = {}

    def go(n: Node) -> Any:
        if n in table:
            return table[n]
        if n not in done:
            new = n if type(n) in (Const, Var) else n.map(go)
            done[n] = n if new is n else canonical(new)
        return done[n]

    return tuple(map(go, node)) if type(node) is tuple else go(node)


def product(sizes: tuple[Expr, ...]) -> Expr:
    out: Expr = Const(1, i64)
    for s in sizes:
        out = out * s
    return out


class SymbolicError(ValueError):
    """A number is required where there is a symbolic size; the message says for what."""


def static(value: Expr, what: str = "a size") -> int:
    """The Python int of a literal size; raises SymbolicError naming `what` for a symbolic one."""
    if isinstance(value, Const) and not value.dtype.is_float:
        return int(value.value)
    raise SymbolicError(f"{what} must be known when compiling, but is symbolic")


def sizes_in(node: Node) -> tuple[Size, ...]:
    """The symbolic sizes in `node`, each once, in order."""
    return tuple(n for n in node.walk() if isinstance(n, Size))


def specialised(value: Expr, sizes: Mapping[Size, int]) -> Expr:
    """`value` with numbers for its symbolic sizes."""
    return substitute(value, {s: Const(n, i64) for s, n in sizes.items()})


def hint(value: Expr) -> int:
    """The expected value of a size; raises SymbolicError if it depends on more than sizes."""
    return static(specialised(value, {s: s.hint for s in sizes_in(value)}))


def variables(node: Node) -> set[Var]:
    """All variables in `node`, sizes included."""
    return {n for n in node.walk() if isinstance(n, Var)}


def is_short(values: Iterable[Node], known: dict[Node, int]) -> bool:
    """Whether each value has at most `MOST_NODES` nodes as text, in which its common parts are repeated.

    A chain of values that read each other twice doubles with each link. `known` collects the lengths of values.
    """

    def length(x: Node) -> int:
        n = known.get(x)
        if n is None:
            n = known[x] = 1 + sum(map(length, x.children()))
        return n

    return all(length(x) <= MOST_NODES for x in values)


def names(node: Node) -> set[str]:
    """The names of all variables in `node`."""
    return {n.name for n in node.walk() if isinstance(n, Var)}


def fresh(stem: str, taken: set[str], numbers: dict[str, int] | None = None) -> str:
    """`stem`, with the least number added that makes it differ from `taken`, if needed; the name is added to `taken`.

    `numbers` remembers the last number of each stem, for stems with thousands of names.
    """
    name, n = stem, (numbers or {}).get(stem, 0)
    while name in taken:
        n += 1
        name = f"{stem}_{n}"
    taken.add(name)
    if numbers is not None:
        numbers[stem] = n
    return name


@functools.lru_cache(maxsize=1 << 14)
def loads(node: Node) -> tuple[Load, ...]:
    return tuple(n for n in node.walk() if isinstance(n, Load))
