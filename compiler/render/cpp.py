"""Kernel IR for a CPU to C++ text: one static function for each of the program's, and the entry that calls them.

The text includes the device functions of `render/cpp`. Integers wrap, so it must be compiled with -fwrapv. A vector of
bools has no one form: it is a mask as wide as the lanes it came from, and is resized where it meets others.
"""

from __future__ import annotations

import math
import struct

from compiler.ir import kernel as k
from compiler.ir.dtype import DType, f32
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, cast
from compiler.ir.expr import op as make
from compiler.render import c
from compiler.render.c import MUL, SHIFT, UNARY, Code, Writer

ENTRY = "mlc_entry"
FLAGS = ("-std=c++17", "-fopenmp", "-fwrapv")  # what the text needs, whatever else is chosen
WIDTH = 120
LARGE_ARRAY = 32 * 1024  # bytes; larger ones do not go on the stack, which threads have little of

TYPES = {
    "f64": "double", "f32": "float", "bf16": "mlc_bf16", "f16": "mlc_f16", "i64": "long", "i32": "int", "i16": "short",
    "i8": "signed char", "u8": "unsigned char", "bool": "bool",
}  # fmt: skip
_MASKS = {8: "signed char", 16: "short", 32: "int", 64: "long"}
_ANY_MASK = 32

# header: the functions that it declares, as far as the text calls them by themselves.
HEADERS = {
    "vector.h": "vec broadcast iota where isnan max min sqrt fma "
    "reduce_add reduce_mul reduce_max reduce_min reduce_and reduce_or any all",
    "indices.h": "floordiv_by mod_by",
    "arithmetic.h": "neg abs sign floor ceil round trunc rsqrt shl shr",
    "convert.h": "bf16 f16 convert from_raw to_raw from_bf16 to_bf16 from_f16 to_f16 from_mask to_mask resize_mask",
    "division.h": "floordiv remainder truncdiv fmod",
    "exponential.h": "exp exp2 expm1 sinh cosh tanh",
    "logarithm.h": "log log2 log10 log1p asinh acosh atanh",
    "power.h": "pow",
    "special.h": "erf erfc",
    "trigonometric.h": "sin cos tan asin acos atan atan2",
    "memory.h": "load load_as load_strided gather store store_as",
    "masks.h": "load_bools store_bools gather_bools load_strided_bools broadcast_mask",
    "gemm.h": "fma_block dot_block",
}
_HEADER_OF = {f"mlc_{name}": header for header, names in HEADERS.items() for name in names.split()}
# Scalar operation: device function, for those whose names differ.
_FUNCTIONS = {"mod": "mlc_remainder", "rem": "mlc_fmod"}
_OPERATIONS = (
    "min max where isnan sqrt fma abs sign floor ceil round trunc rsqrt shl shr floordiv mod truncdiv rem "
    "exp exp2 expm1 sinh cosh tanh log log2 log10 log1p asinh acosh atanh pow erf erfc sin cos tan asin acos atan atan2"
)
_REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}

_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
    compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
    this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void volatile
    wchar_t while xor xor_eq main threads buffers sizes
    """.split()  # noqa: SIM905
)
_ALIASES = frozenset(f"{name}x{2**n}" for name in (*TYPES, *(f"mask{b}" for b in _MASKS)) for n in range(1, 9))
RESERVED = _KEYWORDS | _ALIASES


def render(program: k.Program, *, target: str, provenance: str = "") -> str:
    """The C++ text of `program`; `provenance` is a remark for its head. Raises ValueError for what a CPU cannot do."""
    names = c.spelled([f.name for f in program.functions], RESERVED)
    called: set[str] = set()
    types: set[str] = set()
    functions: list[str] = []
    for f in program.functions:
        functions += ["", *_function(f, names[f.name], program, called, types)]
    head = [*c.comment(f"{program.name}, for {target}"), *c.comment(provenance), f"// Compile with {' '.join(FLAGS)}."]
    headers = dict.fromkeys(_header(name) for name in called)
    includes = [f'#include "{h}"' for h in sorted(headers, key=list(HEADERS).index)]
    aliases = [f"using {name} = {_spelled_out(name)};" for name in sorted(types)]
    entry = ["", *_entry(program, names)]
    return "\n".join([*head, *includes, *([""] if aliases else []), *aliases, *functions, *entry]) + "\n"


def _header(function: str) -> str:
    if function not in _HEADER_OF:
        raise ValueError(f"no header has the device function {function}")
    return _HEADER_OF[function]


def _function(f: k.Function, name: str, program: k.Program, called: set[str], types: set[str]) -> list[str]:
    if f.grid or f.block:
        raise ValueError(f"function {f.name} has a launch grid, which a CPU has not")
    names = c.spelled([*c.bound(f), *program.sizes], RESERVED)
    w = Writer(LANGUAGE, names, {p.name: p.dtype for p in f.params}, c.assigned(f), called=called, types=types)
    for p in f.params:
        _type(w, p.dtype)
    lines = c.body(w, f.body)
    constant = {p.name: "" if p.name in f.writes else "const " for p in f.params}
    params = [f"{constant[p.name]}{_memory(p.dtype)}* __restrict {names[p.name]}" for p in f.params]
    params += [f"long {names[s]}" for s in _sizes(f, program)] + (["int threads"] if _threaded(f) else [])
    about = [*([f"computes {', '.join(f.origin)}"] if f.origin else []), *(["scheduled by"] if f.schedule else [])]
    head = c.comment(f"{f.name} {', '.join(about)}\n{f.schedule}") if about else []
    return [*head, *_filled(f"static void {name}(", params, ") {"), *lines, "}"]


def _filled(start: str, words: list[str], end: str) -> list[str]:
    """`start`, the words and `end`, on as few lines as `WIDTH` allows, the later ones indented."""
    lines = [start + ", ".join(words) + end]
    while len(lines[-1]) > WIDTH and ", " in lines[-1][8:WIDTH]:
        cut = lines[-1].rindex(", ", 0, WIDTH) + 2
        lines[-1:] = [lines[-1][:cut].rstrip(), "    " + lines[-1][cut:]]
    return lines


def _sizes(f: k.Function, program: k.Program) -> list[str]:
    used = {n.name for s in f.body for n in s.walk() if isinstance(n, Var)}
    return [s for s in program.sizes if s in used]


def _threaded(f: k.Function) -> bool:
    return any(_spread(n) for s in f.body for n in s.walk() if isinstance(n, k.For))


def _spread(s: k.For) -> bool:
    """Whether a loop can keep more than one thread busy."""
    match s:
        case k.For(_, Const(start), Const(stop), step):
            return s.mark == "parallel" and stop - start > step
    return s.mark == "parallel"


def _entry(program: k.Program, functions: dict[str, str]) -> list[str]:
    """The one visible function: unpacks the pointers and sizes, and calls the others."""
    places = c.used_buffers(program)
    names = c.spelled([*(t.name for _, t in places), *program.sizes], RESERVED | frozenset(functions.values()))
    used_sizes = [s for s in program.sizes if any(s in _sizes(f, program) for f in program.functions)]
    lines = [f"{_memory(t.dtype)}* {names[t.name]} = ({_memory(t.dtype)}*)buffers[{i}];" for i, t in places]
    lines += [f"const long {names[s]} = sizes[{program.sizes.index(s)}];" for s in used_sizes]
    for f in program.functions:
        args = [names[p.name] for p in f.params] + [names[s] for s in _sizes(f, program)]
        args += ["threads"] if _threaded(f) else []
        lines.append(f"{functions[f.name]}({', '.join(args)});")
    parameters = (("void**", "buffers", bool(places)), ("const long long*", "sizes", bool(used_sizes)),
                  ("int", "threads", any(map(_threaded, program.functions))))  # fmt: skip
    shown = ", ".join(f"{kind} {name}" if used else f"{kind} /* {name} */" for kind, name, used in parameters)
    every = ", ".join(t.name for t in (*program.inputs, *program.outputs, *program.temps))
    return [
        *c.comment("\n".join(_filled("buffers: ", [every or "none"], ""))),
        'extern "C" __attribute__((visibility("default")))',
        f"void {ENTRY}({shown}) {{",
        *("  " + line for line in lines),
        "}",
    ]


# ---- types


def _memory(dtype: DType) -> str:
    """How one element lies in memory; a bool is a byte, so that any value but 0 counts as true."""
    return "unsigned char" if dtype.kind == "bool" else TYPES[dtype.name]


def _lane(dtype: DType) -> str:
    """What is computed with: 16-bit floats are raw bits."""
    return "unsigned short" if _is_half(dtype) else TYPES[dtype.name]


def _is_half(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits == 16


def _type(w: Writer, dtype: DType) -> None:
    if _is_half(dtype):
        w.called.add("mlc_bf16")


def _declare(w: Writer, s: k.Declare) -> str:
    dtype = s.value.dtype
    if dtype.lanes == 1:
        return _lane(dtype)
    w.called.add("mlc_vec")
    if dtype.kind == "bool":
        bits = _mask_bits(w, s.value) or _ANY_MASK
        w.masks[s.name] = bits
        alias = f"mask{bits}x{dtype.lanes}"
    else:
        w.masks.pop(s.name, None)
        alias = str(dtype)
    w.types.add(alias)
    return alias


def _spelled_out(alias: str) -> str:
    name, _, lanes = alias.partition("x")
    if name.startswith("mask"):
        return f"mlc_vec<{_MASKS[int(name[4:])]}, {lanes}>"
    return f"mlc_vec<{'unsigned short' if name in ('bf16', 'f16') else TYPES[name]}, {lanes}>"


# ---- statements


def _statement(w: Writer, s: k.Stmt) -> list[str] | None:
    match s:
        case k.Store(buffer, index, value, "set"):
            dtype = value.dtype
            at = w.pointer(buffer, index)
            match value:
                case Cast(arg) if _is_half(dtype) and not _is_half(arg.dtype) and arg.dtype.kind != "bool":
                    return [w.call("mlc_store_as", at, w.of(arg)).text + ";"]
            if _is_half(dtype):
                at += ".bits"
            if dtype.lanes == 1:
                return [f"{at[1:]} = {w.plain(value)};"]
            return [w.call("mlc_store_bools" if dtype.kind == "bool" else "mlc_store", at, w.of(value)).text + ";"]
    return None


def _array(w: Writer, s: k.Array) -> list[str]:
    """A large array keeps its memory between calls, each thread its own; others see it through a pointer."""
    _type(w, s.dtype)
    kind, name = _memory(s.dtype), w.names[s.name]
    if s.space != "local":
        raise ValueError(f"array {s.name} is in {s.space} memory, which a CPU has not")
    if s.size * s.dtype.bytes <= LARGE_ARRAY:
        return [f"alignas({s.align}) {kind} {name}[{s.size}];"]
    return [
        f"alignas({s.align}) static thread_local {kind} mlc_memory_{name}[{s.size}];",
        f"{kind}* __restrict const {name} = mlc_memory_{name};",
    ]


def _pragma(w: Writer, s: k.For) -> list[str]:
    if _spread(s):
        return ["#pragma omp parallel for num_threads(threads) if (threads > 1)"]
    match s:
        case k.For(_, Const(start), Const(stop), step, _, "unroll") if 1 < -(-(stop - start) // step) < 65535:
            return [f"#pragma GCC unroll {-(-(stop - start) // step)}"]
        case k.For(mark="unroll"):
            return ["#pragma GCC unroll 4"]
    return []


# ---- expressions


def _expression(w: Writer, e: Expr, bits: int) -> Code | None:
    if e.dtype.kind == "bool" and e.dtype.lanes > 1:
        return _mask(w, e, bits or _mask_bits(w, e) or _ANY_MASK)
    match e:
        case Const(value, dtype) if _is_half(dtype):
            raw = Code(f"(unsigned short)0x{half_bits(float(value), dtype):04x}", UNARY)
            return raw if dtype.lanes == 1 else _spread_out(w, raw.text, dtype)
        case Const(value, dtype) if dtype.lanes > 1:
            return _spread_out(w, w.plain(Const(value, dtype.replace(lanes=1))), dtype)
        case k.Broadcast(arg, _):
            return _spread_out(w, w.plain(arg), e.dtype)
        case k.Ramp(start, step, lanes):
            count = w.call("mlc_iota", template=(_lane(start.dtype), lanes)).text
            scaled = count if step == 1 else f"{count} * {w.of(Const(step, start.dtype), UNARY)}"
            return Code(f"{w.of(start, MUL)} + {scaled}", c.ADD)
        case Load() | k.Gather():
            return _load(w, e, "")
        case Cast(arg, dtype):
            return _cast(w, arg, dtype)
        case k.Across(op, arg):
            return _across(w, op, arg)
        case Op("floordiv" | "mod" as name, (a, b)) if _known(b) > 0:
            return w.call(f"mlc_{name}_by", w.of(a), template=(_known(b),))
        case Op("shl" | "shr" as name, (a, b)) if 0 <= _known(b, -1) < e.dtype.bits:
            made = Code(f"{w.of(a, UNARY)} {'<<' if name == 'shl' else '>>'} {_known(b)}", SHIFT)
            return c.narrowed(w, made, e.dtype)
        case Op("where", (cond, a, b)) if e.dtype.lanes > 1:
            return w.call("mlc_where", w.of(cond, bits=e.dtype.bits), w.of(a), w.of(b))
    return None


def _known(e: Expr, otherwise: int = 0) -> int:
    """The whole number that `e` is in every lane."""
    match e:
        case Const(value, dtype) if dtype.is_integer:
            return int(value)
        case k.Broadcast(arg):
            return _known(arg, otherwise)
    return otherwise


def half_bits(value: float, dtype: DType) -> int:
    """The bits of a bf16 or f16 literal."""
    if dtype.name == "f16":
        try:
            return int(struct.unpack("<H", struct.pack("<e", value))[0])
        except OverflowError:
            return 0x7C00 if value > 0 else 0xFC00
    if math.isnan(value):
        return 0x7FC0
    try:
        bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _spread_out(w: Writer, scalar: str, dtype: DType) -> Code:
    return w.call("mlc_broadcast", scalar, template=(_lane(dtype), dtype.lanes))


def _load(w: Writer, e: Load | k.Gather, to: str) -> Code:
    """A load from memory, converted to lanes of the C++ type `to` on the way unless that is empty."""
    dtype = e.dtype
    half = _is_half(dtype) and not to
    lane = to or _lane(dtype)
    if isinstance(e, Load):
        at = w.pointer(e.buffer, e.index[0])
        if dtype.lanes == 1 and dtype.kind == "bool":
            return Code(f"{at[1:]} != 0", c.EQUAL)
        if dtype.lanes == 1:
            return Code(at[1:] + ".bits" if half else at[1:])
        return w.call("mlc_load_as" if to else "mlc_load", at + (".bits" if half else ""), template=(lane, dtype.lanes))
    line = _line(e.index)
    if line is not None:
        start, step = line
        at = w.pointer(e.buffer, start) + (".bits" if half else "")
        return w.call("mlc_load_strided", at, w.plain(step), template=(lane, dtype.lanes))
    base = f"(const unsigned short*){w.names[e.buffer]}" if half else w.names[e.buffer]
    return w.call("mlc_gather", base, w.of(e.index), template=(lane,))


def _line(e: Expr) -> tuple[Expr, Expr] | None:
    """Start and step of a vector of indices that are equally far apart; None for others."""
    match e:
        case k.Ramp(start, step, _):
            return start, Const(step, start.dtype)
        case k.Broadcast(arg, _):
            return arg, Const(0, arg.dtype)
        case Op("add" | "sub" as name, (a, b)):
            first, second = _line(a), _line(b)
            if first is not None and second is not None:
                return make(name, first[0], second[0]), make(name, first[1], second[1])
        case Op("mul", (a, k.Broadcast(by))) | Op("mul", (k.Broadcast(by), a)):
            line = _line(a)
            if line is not None:
                return line[0] * by, line[1] * by
    return None


def _cast(w: Writer, arg: Expr, dtype: DType) -> Code:
    """A conversion; a load or a gather converts on the way."""
    source, lane = arg.dtype, TYPES[dtype.name]
    if _is_half(dtype):
        if source.kind == "bool" or _is_half(source):
            arg = cast(arg, f32.replace(lanes=source.lanes))
        if arg.dtype.name == "f32":
            return w.call(f"mlc_to_{dtype.name}", w.of(arg))
        return w.call("mlc_to_raw", w.of(arg), template=(lane,))
    if dtype.kind == "bool":  # of one lane: vectors are masks
        return Code(f"{_widened(w, arg).at(SHIFT)} != 0", c.EQUAL)
    if source.kind == "bool":
        if source.lanes == 1:
            return Code(f"({lane}){w.of(arg, UNARY)}", UNARY)
        return w.call("mlc_from_mask", w.of(arg, bits=_mask_bits(w, arg) or dtype.bits), template=(lane,))
    if isinstance(arg, Load | k.Gather) and (source.lanes > 1):
        return _load(w, arg, lane)
    if _is_half(source):
        if dtype.name == "f32":
            return w.call(f"mlc_from_{source.name}", w.of(arg))
        return w.call("mlc_from_raw", w.of(arg), template=(lane, TYPES[source.name]))
    if source.lanes == 1 and not (source.is_float and dtype.is_integer):
        return Code(f"({lane}){w.of(arg, UNARY)}", UNARY)
    return w.call("mlc_convert", w.of(arg), template=(lane,))


def _widened(w: Writer, e: Expr) -> Code:
    """`e`, or if it is a 16-bit float the f32 that equals it."""
    return _cast(w, e, f32.replace(lanes=e.dtype.lanes)) if _is_half(e.dtype) else c.expression(w, e)


def _across(w: Writer, op: str, arg: Expr) -> Code:
    if arg.dtype.kind == "bool":
        return w.call({"and": "mlc_all", "min": "mlc_all"}.get(op, "mlc_any"), w.of(arg))
    return w.call(f"mlc_reduce_{_REDUCTIONS[op]}", w.of(arg))


# ---- masks


def _mask_bits(w: Writer, e: Expr) -> int:
    """Bits of the lanes that a vector of bools comes from; 0 where any will do."""
    match e:
        case Var(name):
            return w.masks.get(name, 0)
        case Cast(arg):
            return 32 if _is_half(arg.dtype) else _mask_bits(w, arg) if arg.dtype.kind == "bool" else arg.dtype.bits
        case Op(_, args) if args[-1].dtype.kind != "bool":
            return args[0].dtype.bits
        case Op(_, args):
            return next((bits for a in reversed(args) if (bits := _mask_bits(w, a))), 0)
        case Select(_, then, other):
            return _mask_bits(w, then) or _mask_bits(w, other)
    return 0


def _mask(w: Writer, e: Expr, bits: int) -> Code:
    """A vector of bools as a mask of `bits` a lane."""
    lane, lanes = _MASKS[bits], e.dtype.lanes
    match e:
        case Const(value):
            return w.call("mlc_broadcast_mask", "true" if value else "false", template=(lane, lanes))
        case k.Broadcast(arg):
            return w.call("mlc_broadcast_mask", w.of(arg), template=(lane, lanes))
        case Load(buffer, (index,)):
            return w.call("mlc_load_bools", w.pointer(buffer, index), template=(lane, lanes))
        case k.Gather(buffer, index):
            line = _line(index)
            if line is not None:
                at = w.pointer(buffer, line[0])
                return w.call("mlc_load_strided_bools", at, w.plain(line[1]), template=(lane, lanes))
            return w.call("mlc_gather_bools", w.names[buffer], w.of(index), template=(lane,))
        case Select(cond, then, other):
            return Code(f"{w.of(cond, c.LOR)} ? {w.of(then, c.LOR, bits)} : {w.of(other, c.TERNARY, bits)}", c.TERNARY)
        case Op("where", (cond, then, other)):
            return w.call("mlc_where", *(w.of(x, bits=bits) for x in (cond, then, other)))
        case Op(name, args) if args[0].dtype.kind == "bool":
            return _logic(w, name, args, bits)
    own = _mask_bits(w, e) or bits
    match e:
        case Var(name):
            made = Code(w.names[name])
        case Cast(arg):
            made = Code(f"{_widened(w, arg).at(SHIFT)} != 0", c.EQUAL)
        case Op("isnan", (arg,)):
            made = w.call("mlc_isnan", w.of(arg))
        case Op(name, args) if name in c.INFIX:
            made = c.infix(w, c.INFIX[name], args)
        case _:
            raise ValueError(f"{type(e).__name__} has no meaning on this target")
    return made if own == bits else w.call("mlc_resize_mask", made.text, template=(lane,))


# On masks, which are 0 or -1: symbol, whether each operand and the result are inverted.
_LOGIC = {
    "and": ("&", False, False, False), "or": ("|", False, False, False), "xor": ("^", False, False, False),
    "min": ("&", False, False, False), "max": ("|", False, False, False), "ne": ("^", False, False, False),
    "eq": ("^", False, False, True), "lt": ("&", True, False, False), "gt": ("&", False, True, False),
    "le": ("|", True, False, False), "ge": ("|", False, True, False),
}  # fmt: skip


def _logic(w: Writer, name: str, args: tuple[Expr, ...], bits: int) -> Code:
    if name == "not":
        return Code(f"~{w.of(args[0], UNARY, bits)}", UNARY)
    symbol, first, second, result = _LOGIC[name]
    signs = ("~" if inverted else "" for inverted in (first, second))
    shown = [sign + w.of(a, UNARY, bits) for sign, a in zip(signs, args, strict=True)]
    made = Code(f"{shown[0]} {symbol} {shown[1]}", {"&": c.AND, "|": c.OR, "^": c.XOR}[symbol])
    return Code(f"~({made.text})", UNARY) if result else made


_NAMES = {name: _FUNCTIONS.get(name, f"mlc_{name}") for name in _OPERATIONS.split()}
LANGUAGE = c.Language(TYPES, _NAMES, RESERVED, _expression, _statement, _declare, _array, _pragma)

__all__ = ["ENTRY", "FLAGS", "HEADERS", "LANGUAGE", "half_bits", "render"]
