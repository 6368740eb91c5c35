"""Kernel IR to C-like text: the traversal of statements and expressions that all languages share, driven by tables.

Parentheses follow from precedence, reserved names are escaped, and every function called is recorded, so that the text
includes the headers that it needs and no others.
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
FAILED = "failed"  # the parameter through which a function reports a failed requirement
# Precedence of C's operators, from loosest to tightest.
TERNARY, LOR, LAND, OR, XOR, AND, EQUAL, COMPARE, SHIFT, ADD, MUL, UNARY, ATOM = range(13)

# Scalar operation: symbol, rank, minimum rank of the left and right operands (higher than in C where GCC would warn).
INFIX: dict[str, tuple[str, int, int, int]] = {
    "add": ("+", ADD, ADD, MUL), "sub": ("-", ADD, ADD, MUL),
    "mul": ("*", MUL, MUL, UNARY), "div": ("/", MUL, MUL, UNARY),
    "lt": ("<", COMPARE, SHIFT, SHIFT), "le": ("<=", COMPARE, SHIFT, SHIFT), "gt": (">", COMPARE, SHIFT, SHIFT),
    "ge": (">=", COMPARE, SHIFT, SHIFT), "eq": ("==", EQUAL, SHIFT, SHIFT), "ne": ("!=", EQUAL, SHIFT, SHIFT),
    "and": ("&", AND, UNARY, UNARY), "or": ("|", OR, UNARY, UNARY), "xor": ("^", XOR, UNARY, UNARY),
}  # fmt: skip
# The same for bool operands: both sides are always safe to evaluate, so short-circuiting is harmless.
LOGIC: dict[str, tuple[str, int, int, int]] = {
    "and": ("&&", LAND, LAND, EQUAL), "or": ("||", LOR, LOR, EQUAL), "xor": ("!=", EQUAL, UNARY, UNARY),
    "min": ("&&", LAND, LAND, EQUAL), "max": ("||", LOR, LOR, EQUAL),
}  # fmt: skip
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "signbit")
_CALLS = "min max isnan signbit sqrt fma abs sign floor ceil round tf32 trunc shl shr floordiv truncdiv gcd"
# Scalar operations that are device functions in every language.
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
    """Text of an expression, and the rank of its outermost operator."""

    text: str
    rank: int = ATOM

    def at(self, rank: int) -> str:
        """The text as an operand of at least this rank, in parentheses if necessary."""
        return self.text if self.rank >= rank else f"({self.text})"


@dataclass(frozen=True)
class Language:
    """The parts of rendering that depend on the language.

    `expression` and `statement` are tried first; they return None to leave a node to the shared traversal. `declare`
    gives the type of a variable of this value. The `bits` of an expression are the lane width required of a vector of
    bools, 0 for any. `integer`, if any, renders i64 expressions, either at exactly that type or as C's implicit
    conversions allow.
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
    failures: str = FAILED  # where failed requirements are reported


@dataclass
class Writer:
    """State of rendering one function: the spelling of names, which are reassigned, the functions called so far."""

    language: Language
    function: str
    names: Mapping[str, str]
    buffers: dict[str, DType]
    assigned: frozenset[str] = frozenset()
    masks: dict[str, int] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)  # names of functions in use
    helpers: list[str] = field(default_factory=list)  # lines of helper functions to put before this one
    in_parallel_loop: bool = False  # whether inside a loop that is spread over threads
    past: bool = False  # whether the stores of the enclosing loop bypass the caches
    ahead: int = 0  # bytes beyond each load that the enclosing loop prefetches
    owned: bool = False  # whether its stores prefetch as well
    offsets: Mapping[str, int] = field(default_factory=dict)  # of shared arrays in dynamic shared memory
    ranges: Mapping[str, Range] = field(default_factory=dict)  # of integer variables
    narrow: frozenset[str] = frozenset()  # integer variables that fit 32 bits
    wrapping: frozenset[str] = frozenset()  # integer variables that may overflow and wrap
    written: frozenset[str] = frozenset()  # parameters that the function writes
    by_lane: frozenset[str] = frozenset()  # loaded vectors whose lanes are used one by one

    def call(self, function: str, *args: str, template: Iterable[int | str] = ()) -> Code:
        """A call, recorded."""
        self.called.add(function)
        words = ", ".join(map(str, template))
        return Code(f"{function}{f'<{words}>' if words else ''}({', '.join(args)})")

    def text(self, e: Expr, rank: int = TERNARY, bits: int = 0) -> str:
        """The text of `e` at its exact type."""
        return expression(self, e, bits).at(rank)

    def plain(self, e: Expr, rank: int = TERNARY) -> str:
        """The text of `e` where C's implicit conversions of integers are acceptable."""
        if isinstance(e, Const) and e.dtype.is_integer and abs(e.value) < 2**63:
            return Code(str(e.value), UNARY if e.value < 0 else ATOM).at(rank)
        if self.language.integer is not None and e.dtype is i64:
            return self.language.integer(self, e, False).at(rank)
        return self.text(e, rank)

    def element(self, buffer: str, index: Expr) -> str:
        return f"{self.names[buffer]}[{self.plain(index)}]"

    def pointer(self, buffer: str, index: Expr) -> str:
        return f"&{self.element(buffer, index)}"


def literal(value: bool | int | float, dtype: DType) -> Code:
    """A C literal of exactly this value and type."""
    if dtype.is_float:
        return _float_literal(float(value), "f" if dtype is f32 else "")
    if dtype is boolean:
        return Code("true" if value else "false")
    integer_value = int(value)
    suffix = "l" if dtype.bits == 64 else ""
    if dtype.kind == "int" and integer_value == -(2 ** (dtype.bits - 1)) and dtype.bits >= 32:
        # C has no negative literals, and the positive one overflows.
        return Code(f"-{-integer_value - 1}{suffix} - 1", ADD)
    return Code(f"{integer_value}{suffix}", UNARY if integer_value < 0 else ATOM)


def _float_literal(value: float, suffix: str) -> Code:
    if math.isnan(value):
        return Code(f'__builtin_nan{suffix}("")')
    if math.isinf(value):
        return Code(f"{'-' if value < 0 else ''}__builtin_inf{suffix}()", UNARY if value < 0 else ATOM)
    text = repr(value)
    if suffix:
        # The fewest digits whose value is well within the midpoints to the neighbouring floats.
        shorter = (f"{value:.{digits}g}" for digits in range(1, 10))
        text = next(t for t in shorter if abs(float(t) - value) <= abs(value) * 2.0**-26)
    if not set(text) & set(".e"):
        text += ".0"
    return Code(text + suffix, UNARY if text.startswith("-") else ATOM)


# ---- expressions


def expression(w: Writer, e: Expr, bits: int = 0) -> Code:
    if w.language.integer is not None and e.dtype is i64:
        return w.language.integer(w, e, True)
    return render_expression(w, e, bits)


def render_expression(w: Writer, e: Expr, bits: int = 0) -> Code:
    """Render an expression by the language's own function, or else by the shared rules."""
    special = w.language.expression(w, e, bits)
    if special is not None:
        return special
    match e:
        case Const(value, dtype):
            return convert_back(w, literal(value, dtype), dtype)
        case Var(name):
            return Code(w.names[name])
        case Load(buffer, (index,)):
            return Code(w.element(buffer, index))
        case Select(cond, then, other):
            return Code(f"{w.text(cond, LOR)} ? {w.text(then, LOR, bits)} : {w.text(other, TERNARY, bits)}", TERNARY)
        case Op(name, args):
            return _operation(w, name, args)
        case Cast(arg, dtype):
            return Code(f"({w.language.types[dtype.name]}){w.text(arg, UNARY)}", UNARY)
    raise ValueError(f"{type(e).__name__} has no meaning on this target")


def _operation(w: Writer, name: str, args: tuple[Expr, ...]) -> Code:
    dtype = args[-1].dtype
    if name == "require":
        return w.call("mlc_require", w.language.failures, *(w.text(a) for a in args))
    if dtype.kind == "bool" and name in LOGIC:
        return infix(w, LOGIC[name], args)
    if name in INFIX:
        code = infix(w, INFIX[name], args)
        return code if name in COMPARISONS else convert_back(w, code, dtype)
    if name in ("neg", "not"):
        symbol = "-" if name == "neg" else "!" if dtype.kind == "bool" else "~"
        inner = w.text(args[0], UNARY)
        return convert_back(w, Code(symbol + (f"({inner})" if inner.startswith("-") else inner), UNARY), dtype)
    if name == "where" and dtype.lanes == 1:
        return expression(w, Select(*args))
    if name not in w.language.functions:
        raise ValueError(f"{name} has no spelling on this target")
    return w.call(w.language.functions[name], *(w.text(a) for a in args))


def has_requirements(body: Iterable[k.Stmt]) -> bool:
    """Whether statements have requirements, so that their function needs a place to report a failure."""
    return any(isinstance(n, Op) and n.name == "require" for s in body for n in s.walk())


def convert_back(w: Writer, code: Code, dtype: DType) -> Code:
    """C computes narrow integers as int: convert the result back to its type."""
    if dtype.lanes > 1 or not dtype.is_integer or dtype.bits >= 32:
        return code
    return Code(f"({w.language.types[dtype.name]}){code.at(UNARY)}", UNARY)


def infix(w: Writer, row: tuple[str, int, int, int], args: tuple[Expr, ...]) -> Code:
    symbol, rank, left, right = row
    a, b = args
    # Literals and broadcasts are written bare if the other operand determines the type.
    first = (
        w.text(a, left)
        if _determines_type(a)
        else _untyped_operand(w, a, left)
        if _determines_type(b)
        else w.text(a, left)
    )
    second = w.text(b, right) if _determines_type(b) or not _determines_type(a) else _untyped_operand(w, b, right)
    if symbol == "-" and second.startswith("-"):
        second = f"({second})"
    return Code(f"{first} {symbol} {second}", rank)


def _determines_type(e: Expr) -> bool:
    return not isinstance(e, Const | k.Broadcast)


def _untyped_operand(w: Writer, e: Expr, rank: int) -> str:
    match e:
        case k.Broadcast(arg) if (
            arg.dtype.is_integer and arg.dtype.bits < 32 and not isinstance(arg, Const | Load | Var)
        ):
            return w.text(e, rank)  # C computes it as int, and GCC looks through a cast of that
        case k.Broadcast(arg) if arg.dtype.kind != "bool":
            return w.text(arg, rank)
        case Const(value, dtype) if dtype.lanes > 1 and dtype.kind != "bool":
            return w.text(Const(value, dtype.replace(lanes=1)), rank)
        case Const(_, dtype) if dtype.lanes == 1:
            return w.plain(e, rank)
    return w.text(e, rank)


# ---- statements


def body(w: Writer, statements: tuple[k.Stmt, ...]) -> list[str]:
    """The lines of a block, indented; restores the scope of names declared in it."""
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
            return [f"{constant}{w.language.declare(w, s)} {w.names[name]} = {_value_text(w, name, value)};"]
        case k.Assign(name, value):
            return [f"{w.names[name]} = {_value_text(w, name, value)};"]
        case k.Store(buffer, index, value, "set"):
            return [f"{w.element(buffer, index)} = {w.plain(value)};"]
        case k.Store():
            return statement(w, expand_accumulation(s))
        case k.For(var, start, stop, step, inner):
            name = w.names[var]
            increment = f"{name}++" if step == 1 else f"{name} += {step}"
            type_name = "int" if var in w.narrow else "long"
            head = f"for ({type_name} {name} = {w.plain(start)}; {name} < {w.plain(stop, SHIFT)}; {increment}) {{"
            return [*w.language.pragma(w, s), head, *body(w, inner), "}"]
        case k.If(cond, then, orelse):
            else_lines = ["} else {", *body(w, orelse)] if orelse else []
            return [f"if ({w.text(cond)}) {{", *body(w, then), *else_lines, "}"]
        case k.Array(name, dtype):
            w.buffers[name] = dtype
            return w.language.array(w, s)
        case k.Call(function, template, args):
            if any(isinstance(a, k.Map) for a in args):
                raise ValueError(f"{function} takes a tensor map, which there is none of on this target")
            arguments = [w.pointer(a.buffer, a.index) if isinstance(a, k.Address) else w.text(a)
                     for a in args if not isinstance(a, k.Map)]  # fmt: skip
            return [w.call(function, *arguments, template=template).text + ";"]
        case k.Comment(text):
            return comment(text)
    raise ValueError(f"{type(s).__name__} has no meaning on this target")


def _value_text(w: Writer, name: str, value: Expr) -> str:
    """The text of the value of a variable."""
    if w.language.integer is not None and value.dtype is i64:
        return w.plain(value)
    return w.text(value, bits=w.masks.get(name, 0))


def expand_accumulation(s: k.Store) -> k.Store:
    """Expand an accumulating store to load, combine, store; short floats are combined as f32."""
    old: Expr = Load(s.buffer, (s.index,), s.value.dtype)
    dtype = s.value.dtype
    if dtype.is_float and dtype.bits <= 16:
        wide = f32.replace(lanes=dtype.lanes)
        return s.replace(value=Cast(op(COMBINE[s.op], Cast(old, wide), Cast(s.value, wide)), dtype), op="set")
    return s.replace(value=op(COMBINE[s.op], old, s.value), op="set")


def header_of(headers: Mapping[str, str], function: str) -> str:
    """The header that declares a device function. Raises ValueError if none does."""
    for header, names in headers.items():
        if function.removeprefix("mlc_") in names.split():
            return header
    raise ValueError(f"no header has the device function {function}")


def wrap_list(start: str, words: list[str], end: str) -> list[str]:
    """`start`, the words and `end` on as few lines as `WIDTH` allows, with continuation lines indented."""
    lines = [start + ", ".join(words) + end]
    while len(lines[-1]) > WIDTH and ", " in lines[-1][8:WIDTH]:
        cut = lines[-1].rindex(", ", 0, WIDTH) + 2
        lines[-1:] = [lines[-1][:cut].rstrip(), "    " + lines[-1][cut:]]
    return lines


def comment(text: str) -> list[str]:
    """Line comments, without trailing backslashes, which would continue them."""
    return [f"// {line}".rstrip().rstrip("\\").rstrip() for line in text.splitlines()]


def describe(f: k.Function) -> list[str]:
    """Comments on what a function computes and how it was scheduled."""
    notes = [*([f"computes {', '.join(f.origin)}"] if f.origin else []), *(["scheduled by"] if f.schedule else [])]
    return comment(f"{f.name} {', '.join(notes)}\n{f.schedule}") if notes else []


# ---- names


def spell_names(names: Iterable[str], reserved: frozenset[str], prefix: str = "mlc_") -> dict[str, str]:
    """Map names to distinct C names: unchanged, or with trailing underscores if reserved or taken."""
    distinct = list(dict.fromkeys(names))
    out: dict[str, str] = {}
    taken = set(reserved) | {n for n in distinct if n not in reserved and not n.startswith((prefix, "_"))}
    for name in distinct:
        spelling = f"v{name}" if name.startswith((prefix, "_")) else name
        while (spelling in taken and spelling != name) or spelling in reserved:
            spelling += "_"
        taken.add(spelling)
        out[name] = spelling
    return out


def bound_names(function: k.Function) -> list[str]:
    """All names that a function binds, parameters first."""
    out = [p.name for p in function.params]
    for s in function.body:
        for n in s.walk():
            match n:
                case k.Declare(name) | k.For(name) | k.Array(name):
                    out.append(name)
    return out


def accessed_buffers(body: tuple[k.Stmt, ...]) -> set[str]:
    """Names of the buffers that statements access."""
    kinds = Load | k.Gather | k.Store | k.Address
    return {n.buffer for s in body for n in s.walk() if isinstance(n, kinds)}


def written_buffers(body: tuple[k.Stmt, ...]) -> set[str]:
    stored = {n.buffer for s in body for n in s.walk() if isinstance(n, k.Store)}
    return stored | {b for s in body for n in s.walk() if isinstance(n, k.Call) for b in n.writes}


def reassigned_names(function: k.Function) -> frozenset[str]:
    return frozenset(n.name for s in function.body for n in s.walk() if isinstance(n, k.Assign))


def used_buffers(program: k.Program) -> list[tuple[int, Tensor]]:
    """Inputs, outputs and temporaries used by some function, with their position among the entry's buffers."""
    used = {p.name for f in program.functions for p in f.params}
    buffers = (*program.inputs, *program.outputs, *program.temps)
    return [(i, t) for i, t in enumerate(buffers) if t.name in used]
