"""Kernel IR to C-like text: the walk over statements and expressions that all languages share, tables for the rest.

Precedence decides the parentheses; names that the language reserves are escaped; every function called is recorded, so
that the text includes what it needs and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from compiler.ir import functions
from compiler.ir import kernel as k
from compiler.ir.dtype import DType, boolean, f32, i64
from compiler.ir.expr import COMBINE, Cast, Const, Expr, Load, Op, Select, Var, op
from compiler.ir.ranges import Range
from compiler.ir.tensor import Tensor

WIDTH = 120
FAILED = "failed"  # the parameter through which a function says that a requirement failed
# How tightly C's operators bind.
TERNARY, LOR, LAND, OR, XOR, AND, EQUAL, COMPARE, SHIFT, ADD, MUL, UNARY, ATOM = range(13)

# Scalar operation: symbol, rank, rank asked of the left and of the right operand (more than C asks if GCC would warn).
INFIX: dict[str, tuple[str, int, int, int]] = {
    "add": ("+", ADD, ADD, MUL), "sub": ("-", ADD, ADD, MUL),
    "mul": ("*", MUL, MUL, UNARY), "div": ("/", MUL, MUL, UNARY),
    "lt": ("<", COMPARE, SHIFT, SHIFT), "le": ("<=", COMPARE, SHIFT, SHIFT), "gt": (">", COMPARE, SHIFT, SHIFT),
    "ge": (">=", COMPARE, SHIFT, SHIFT), "eq": ("==", EQUAL, SHIFT, SHIFT), "ne": ("!=", EQUAL, SHIFT, SHIFT),
    "and": ("&", AND, UNARY, UNARY), "or": ("|", OR, UNARY, UNARY), "xor": ("^", XOR, UNARY, UNARY),
}  # fmt: skip
# The same for bool operands: both sides are always safe to evaluate, and never need be.
LOGIC: dict[str, tuple[str, int, int, int]] = {
    "and": ("&&", LAND, LAND, EQUAL), "or": ("||", LOR, LOR, EQUAL), "xor": ("!=", EQUAL, UNARY, UNARY),
    "min": ("&&", LAND, LAND, EQUAL), "max": ("||", LOR, LOR, EQUAL),
}  # fmt: skip
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "signbit")
_CALLS = "min max isnan signbit sqrt fma abs sign floor ceil round tf32 trunc shl shr floordiv truncdiv gcd"
# Scalar operations that are calls of device functions in every language.
FUNCTIONS = {name: f"mlc_{name}" for name in (*_CALLS.split(), *functions.FUNCTIONS)}
FUNCTIONS |= {"mod": "mlc_remainder", "rem": "mlc_fmod"}
CPP_KEYWORDS = frozenset(
    """
    std alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
    compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
    this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void volatile
    wchar_t while xor xor_eq main
    """.split()  # noqa: SIM905
)


class Code(NamedTuple):
    """Text of an expression, and how tightly its outermost operator binds."""

    text: str
    rank: int = ATOM

    def at(self, rank: int) -> str:
        """The text as an operand that must bind at least as tightly as `rank`."""
        return self.text if self.rank >= rank else f"({self.text})"


@dataclass(frozen=True)
class Language:
    """What one language spells its own way.

    `expression` and `statement` are asked first and return None for what the shared walk does; `declare` gives the type
    of a variable with this value; `bits` of an expression is the width that a vector of bools must have, 0 for any.
    `integer`, if any, spells i64 expressions: at exactly that type, or as C converts them by itself.
    """

    types: Mapping[str, str]
    functions: Mapping[str, str]
    reserved: frozenset[str]
    expression: Callable[[Writer, Expr, int], Code | None]
    statement: Callable[[Writer, k.Stmt], list[str] | None]
    declare: Callable[[Writer, k.Declare], str]
    array: Callable[[Writer, k.Array], list[str]]
    pragma: Callable[[Writer, k.For], list[str]]
    integer: Callable[[Writer, Expr, bool], Code] | None = None
    failures: str = FAILED  # what a requirement that fails is told to


@dataclass
class Writer:
    """The state of writing one function: how names are spelled, which are reassigned, what was called so far."""

    language: Language
    function: str
    names: Mapping[str, str]
    buffers: dict[str, DType]
    assigned: frozenset[str] = frozenset()
    masks: dict[str, int] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)  # taken names of functions
    before: list[str] = field(default_factory=list)  # lines of functions that this one needs
    inside: bool = False  # of a loop that is spread over threads
    mark: str = ""  # of the loop around that has a say in how memory is used
    offsets: Mapping[str, int] = field(default_factory=dict)  # of shared arrays in the memory that a launch brings
    ranges: Mapping[str, Range] = field(default_factory=dict)  # of integer variables
    narrow: frozenset[str] = frozenset()  # integer variables that 32 bits hold
    data: frozenset[str] = frozenset()  # integer variables that may wrap around
    written: frozenset[str] = frozenset()  # parameters that the function writes
    by_lane: frozenset[str] = frozenset()  # vectors of which each lane is used by itself, as it was loaded

    def call(self, function: str, *args: str, template: Iterable[int | str] = ()) -> Code:
        """A call, recorded."""
        self.called.add(function)
        words = ", ".join(map(str, template))
        return Code(f"{function}{f'<{words}>' if words else ''}({', '.join(args)})")

    def of(self, e: Expr, rank: int = TERNARY, bits: int = 0) -> str:
        """The text of `e` at its exact type."""
        return expression(self, e, bits).at(rank)

    def plain(self, e: Expr, rank: int = TERNARY) -> str:
        """The text of `e` where C converts integer literals by itself."""
        if isinstance(e, Const) and e.dtype.is_integer and abs(e.value) < 2**63:
            return Code(str(e.value), UNARY if e.value < 0 else ATOM).at(rank)
        if self.language.integer is not None and e.dtype is i64:
            return self.language.integer(self, e, False).at(rank)
        return self.of(e, rank)

    def place(self, buffer: str, index: Expr) -> str:
        return f"{self.names[buffer]}[{self.plain(index)}]"

    def pointer(self, buffer: str, index: Expr) -> str:
        return f"&{self.place(buffer, index)}"


def literal(value: bool | int | float, dtype: DType) -> Code:
    """A C literal of exactly this value and type."""
    if dtype.is_float:
        return _float(float(value), "f" if dtype is f32 else "")
    if dtype is boolean:
        return Code("true" if value else "false")
    number = int(value)
    suffix = "l" if dtype.bits == 64 else ""
    if dtype.kind == "int" and number == -(2 ** (dtype.bits - 1)) and dtype.bits >= 32:
        return Code(f"-{-number - 1}{suffix} - 1", ADD)  # C has no negative literals, and the positive one is too large
    return Code(f"{number}{suffix}", UNARY if number < 0 else ATOM)


def _float(value: float, suffix: str) -> Code:
    if math.isnan(value):
        return Code(f'__builtin_nan{suffix}("")')
    if math.isinf(value):
        return Code(f"{'-' if value < 0 else ''}__builtin_inf{suffix}()", UNARY if value < 0 else ATOM)
    text = repr(value)
    if suffix:
        # The fewest digits that lie well inside the half-way points to the neighbouring floats.
        shorter = (f"{value:.{digits}g}" for digits in range(1, 10))
        text = next(t for t in shorter if abs(float(t) - value) <= abs(value) * 2.0**-26)
    if not set(text) & set(".e"):
        text += ".0"
    return Code(text + suffix, UNARY if text.startswith("-") else ATOM)


# ---- expressions


def expression(w: Writer, e: Expr, bits: int = 0) -> Code:
    if w.language.integer is not None and e.dtype is i64:
        return w.language.integer(w, e, True)
    return ordinary(w, e, bits)


def ordinary(w: Writer, e: Expr, bits: int = 0) -> Code:
    """An expression as the language spells it, else as all do."""
    special = w.language.expression(w, e, bits)
    if special is not None:
        return special
    match e:
        case Const(value, dtype):
            return narrowed(w, literal(value, dtype), dtype)
        case Var(name):
            return Code(w.names[name])
        case Load(buffer, (index,)):
            return Code(w.place(buffer, index))
        case Select(cond, then, other):
            return Code(f"{w.of(cond, LOR)} ? {w.of(then, LOR, bits)} : {w.of(other, TERNARY, bits)}", TERNARY)
        case Op(name, args):
            return _operation(w, name, args)
        case Cast(arg, dtype):
            return Code(f"({w.language.types[dtype.name]}){w.of(arg, UNARY)}", UNARY)
    raise ValueError(f"{type(e).__name__} has no meaning on this target")


def _operation(w: Writer, name: str, args: tuple[Expr, ...]) -> Code:
    dtype = args[-1].dtype
    if name == "require":
        return w.call("mlc_require", w.language.failures, *(w.of(a) for a in args))
    if dtype.kind == "bool" and name in LOGIC:
        return infix(w, LOGIC[name], args)
    if name in INFIX:
        made = infix(w, INFIX[name], args)
        return made if name in COMPARISONS else narrowed(w, made, dtype)
    if name in ("neg", "not"):
        symbol = "-" if name == "neg" else "!" if dtype.kind == "bool" else "~"
        inner = w.of(args[0], UNARY)
        return narrowed(w, Code(symbol + (f"({inner})" if inner.startswith("-") else inner), UNARY), dtype)
    if name == "where" and dtype.lanes == 1:
        return expression(w, Select(*args))
    if name not in w.language.functions:
        raise ValueError(f"{name} has no spelling on this target")
    return w.call(w.language.functions[name], *(w.of(a) for a in args))


def fails(body: Iterable[k.Stmt]) -> bool:
    """Whether statements have requirements, for which they need to know where to say that one failed."""
    return any(isinstance(n, Op) and n.name == "require" for s in body for n in s.walk())


def narrowed(w: Writer, made: Code, dtype: DType) -> Code:
    """C computes narrow integers as int: cut the result to its type."""
    if dtype.lanes > 1 or not dtype.is_integer or dtype.bits >= 32:
        return made
    return Code(f"({w.language.types[dtype.name]}){made.at(UNARY)}", UNARY)


def infix(w: Writer, row: tuple[str, int, int, int], args: tuple[Expr, ...]) -> Code:
    symbol, rank, left, right = row
    a, b = args
    # Bare literals and scalars where the other operand decides the type.
    first = w.of(a, left) if _settles(a) else _loose(w, a, left) if _settles(b) else w.of(a, left)
    second = w.of(b, right) if _settles(b) or not _settles(a) else _loose(w, b, right)
    if symbol == "-" and second.startswith("-"):
        second = f"({second})"
    return Code(f"{first} {symbol} {second}", rank)


def _settles(e: Expr) -> bool:
    return not isinstance(e, Const | k.Broadcast)


def _loose(w: Writer, e: Expr, rank: int) -> str:
    match e:
        case k.Broadcast(Select() | Op("where") as arg) if arg.dtype.is_integer and arg.dtype.bits < 32:
            return w.of(e, rank)  # C makes an int of it, cast or not
        case k.Broadcast(arg) if arg.dtype.kind != "bool":
            return w.of(arg, rank)
        case Const(value, dtype) if dtype.lanes > 1 and dtype.kind != "bool":
            return w.of(Const(value, dtype.replace(lanes=1)), rank)
        case Const(_, dtype) if dtype.lanes == 1:
            return w.plain(e, rank)
    return w.of(e, rank)


# ---- statements


def body(w: Writer, statements: tuple[k.Stmt, ...]) -> list[str]:
    """The lines of a block, indented; names declared in it end with it."""
    masks, buffers = dict(w.masks), dict(w.buffers)
    lines = ["  " + line for s in statements for line in statement(w, s)]
    w.masks, w.buffers = masks, buffers
    return lines


def statement(w: Writer, s: k.Stmt) -> list[str]:
    special = w.language.statement(w, s)
    if special is not None:
        return special
    match s:
        case k.Declare(name, value):
            constant = "" if name in w.assigned else "const "
            return [f"{constant}{w.language.declare(w, s)} {w.names[name]} = {_given(w, name, value)};"]
        case k.Assign(name, value):
            return [f"{w.names[name]} = {_given(w, name, value)};"]
        case k.Store(buffer, index, value, "set"):
            return [f"{w.place(buffer, index)} = {w.plain(value)};"]
        case k.Store():
            return statement(w, combined(s))
        case k.For(var, start, stop, step, inner):
            name = w.names[var]
            by = f"{name}++" if step == 1 else f"{name} += {step}"
            kind = "int" if var in w.narrow else "long"
            head = f"for ({kind} {name} = {w.plain(start)}; {name} < {w.plain(stop, SHIFT)}; {by}) {{"
            return [*w.language.pragma(w, s), head, *body(w, inner), "}"]
        case k.If(cond, then, orelse):
            other = ["} else {", *body(w, orelse)] if orelse else []
            return [f"if ({w.of(cond)}) {{", *body(w, then), *other, "}"]
        case k.Array(name, dtype):
            w.buffers[name] = dtype
            return w.language.array(w, s)
        case k.Call(function, template, args):
            if any(isinstance(a, k.Map) for a in args):
                raise ValueError(f"{function} takes a tensor map, which there is none of on this target")
            shown = [w.pointer(a.buffer, a.index) if isinstance(a, k.Address) else w.of(a)
                     for a in args if not isinstance(a, k.Map)]  # fmt: skip
            return [w.call(function, *shown, template=template).text + ";"]
        case k.Comment(text):
            return comment(text)
    raise ValueError(f"{type(s).__name__} has no meaning on this target")


def _given(w: Writer, name: str, value: Expr) -> str:
    """The text of a value for a variable."""
    if w.language.integer is not None and value.dtype is i64:
        return w.plain(value)
    return w.of(value, bits=w.masks.get(name, 0))


def combined(s: k.Store) -> k.Store:
    """A store that combines, as load, combine, store; short floats combine as f32."""
    old: Expr = Load(s.buffer, (s.index,), s.value.dtype)
    dtype = s.value.dtype
    if dtype.is_float and dtype.bits <= 16:
        wide = f32.replace(lanes=dtype.lanes)
        return s.replace(value=Cast(op(COMBINE[s.op], Cast(old, wide), Cast(s.value, wide)), dtype), op="set")
    return s.replace(value=op(COMBINE[s.op], old, s.value), op="set")


def header_of(headers: Mapping[str, str], function: str) -> str:
    """Which of the headers, each with the names that it declares, has a device function; raises ValueError for none."""
    for header, names in headers.items():
        if function.removeprefix("mlc_") in names.split():
            return header
    raise ValueError(f"no header has the device function {function}")


def filled(start: str, words: list[str], end: str) -> list[str]:
    """`start`, the words and `end`, on as few lines as `WIDTH` allows, the later ones indented."""
    lines = [start + ", ".join(words) + end]
    while len(lines[-1]) > WIDTH and ", " in lines[-1][8:WIDTH]:
        cut = lines[-1].rindex(", ", 0, WIDTH) + 2
        lines[-1:] = [lines[-1][:cut].rstrip(), "    " + lines[-1][cut:]]
    return lines


def comment(text: str) -> list[str]:
    """Line comments; a backslash at a line's end would swallow the next."""
    return [f"// {line}".rstrip().rstrip("\\").rstrip() for line in text.splitlines()]


def about(f: k.Function) -> list[str]:
    """What a function computes and how it was scheduled, in comments above it."""
    said = [*([f"computes {', '.join(f.origin)}"] if f.origin else []), *(["scheduled by"] if f.schedule else [])]
    return comment(f"{f.name} {', '.join(said)}\n{f.schedule}") if said else []


# ---- names


def spelled(names: Iterable[str], reserved: frozenset[str], prefix: str = "mlc_") -> dict[str, str]:
    """A C name for each name, no two alike: its own, or with underscores behind where that is reserved or taken."""
    wanted = list(dict.fromkeys(names))
    out: dict[str, str] = {}
    taken = set(reserved) | {n for n in wanted if n not in reserved and not n.startswith((prefix, "_"))}
    for name in wanted:
        made = f"v{name}" if name.startswith((prefix, "_")) else name
        while (made in taken and made != name) or made in reserved:
            made += "_"
        taken.add(made)
        out[name] = made
    return out


def bound(function: k.Function) -> list[str]:
    """Every name that a function binds, parameters first."""
    out = [p.name for p in function.params]
    for s in function.body:
        for n in s.walk():
            match n:
                case k.Declare(name) | k.For(name) | k.Array(name):
                    out.append(name)
    return out


def touched(body: tuple[k.Stmt, ...]) -> set[str]:
    """Names of the buffers that statements read or write."""
    kinds = Load | k.Gather | k.Store | k.Address
    return {n.buffer for s in body for n in s.walk() if isinstance(n, kinds)}


def written(body: tuple[k.Stmt, ...]) -> set[str]:
    made = {n.buffer for s in body for n in s.walk() if isinstance(n, k.Store)}
    return made | {b for s in body for n in s.walk() if isinstance(n, k.Call) for b in n.writes}


def assigned(function: k.Function) -> frozenset[str]:
    return frozenset(n.name for s in function.body for n in s.walk() if isinstance(n, k.Assign))


def used_buffers(program: k.Program) -> list[tuple[int, Tensor]]:
    """Inputs, outputs and temporaries that some function uses, with their position in the entry's list."""
    used = {p.name for f in program.functions for p in f.params}
    every = (*program.inputs, *program.outputs, *program.temps)
    return [(i, t) for i, t in enumerate(every) if t.name in used]
