"""Expressions of Kernel IR as C++: vectors, conversions, memory accesses, and masks.

A vector of bools has no fixed type: it is a mask as wide as the lanes that it is computed from, and is resized where it
meets others. A short float is held as raw bits until it is converted.
"""

from __future__ import annotations

import math
import struct

from compiler.ir import float8
from compiler.ir import kernel as k
from compiler.ir.dtype import DTYPES, EIGHTHS, DType, f32, i32, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, cast
from compiler.render import c
from compiler.render.c import MUL, SHIFT, UNARY, Code, Writer
from compiler.render.integer_ranges import is_data
from compiler.render.lane_comparisons import affine_lanes, narrow_comparison
from compiler.render.lane_values import lane_values

TYPES = {
    "f64": "double", "f32": "float", "bf16": "mlc_bf16", "f16": "mlc_f16", "i64": "long", "i32": "int", "i16": "short",
    "i8": "signed char", "u8": "unsigned char", "bool": "bool", "f8e4m3": "mlc_f8e4m3", "f8e5m2": "mlc_f8e5m2",
}  # fmt: skip
MASKS = {8: "signed char", 16: "short", 32: "int", 64: "long"}
ANY_MASK = 32
FAILURES = "failures"  # the variable in which a function accumulates failed requirements

_REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def memory_type(dtype: DType) -> str:
    """The type of an element in memory; a bool is a byte, so that any nonzero value counts as true."""
    return "unsigned char" if dtype.kind == "bool" else TYPES[dtype.name]


def lane_type(dtype: DType) -> str:
    """The type of an element in computation; short floats are raw bits."""
    return raw_type(dtype) if is_short(dtype) else TYPES[dtype.name]


def raw_type(dtype: DType) -> str:
    """The integer type that holds the bits of a short float."""
    return "unsigned short" if dtype.bits == 16 else "unsigned char"


def is_short(dtype: DType) -> bool:
    """Whether it is a float of 16 or 8 bits, a storage type only."""
    return dtype.is_float and dtype.bits <= 16


def variable_type(w: Writer, name: str, dtype: DType) -> str:
    """The type of a variable."""
    if dtype.lanes == 1:
        return lane_type(dtype)
    w.called.add("mlc_vec")
    alias = f"mask{w.masks[name]}x{dtype.lanes}" if dtype.kind == "bool" else str(dtype)
    w.types.add(alias)
    return alias


def alias_definition(alias: str) -> str:
    name, _, lanes = alias.partition("x")
    if name.startswith("mask"):
        return f"mlc_vec<{MASKS[int(name[4:])]}, {lanes}>"
    return f"mlc_vec<{lane_type(DTYPES[name])}, {lanes}>"


def expression(w: Writer, e: Expr, bits: int) -> Code | None:
    if e.dtype.kind == "bool" and e.dtype.lanes > 1:
        return _mask(w, e, bits or mask_bits(w, e) or ANY_MASK)
    match e:
        case Const(value, dtype) if is_short(dtype):
            raw = literal(float(value), dtype)
            return raw if dtype.lanes == 1 else _broadcast(w, raw.text, dtype)
        case Const(value, dtype) if dtype.lanes > 1:
            return _broadcast(w, w.plain(Const(value, dtype.replace(lanes=1))), dtype)
        case k.Broadcast(arg, _):
            return _broadcast(w, w.plain(arg), e.dtype)
        case k.Ramp(start, step, lanes):
            count = w.call("mlc_iota", template=(lane_type(start.dtype), lanes)).text
            scaled = count if step == 1 else f"{count} * {w.text(Const(step, start.dtype), UNARY)}"
            return Code(f"{w.text(start, MUL)} + {scaled}", c.ADD)
        case Load() | k.Gather():
            return _load(w, e, "")
        case Select(cond, Load() as load, other) if cond.dtype.lanes > 1:
            return _masked_load(w, cond, load, other)
        case Cast(arg, dtype):
            return _cast(w, arg, dtype)
        case k.Across(op, arg):
            return _reduce_lanes(w, op, arg)
        case Op("floordiv" | "mod" as name, (a, b)) if _constant_value(b) > 0:
            return w.call(f"mlc_{name}_by", w.text(a), template=(_constant_value(b),))
        case Op("add" | "sub" | "mul" | "neg" as name, args) if _may_wrap(w, e):
            return w.call(f"mlc_{name}", *map(w.text, args))
        case Op("shl" | "shr" as name, (a, b)) if 0 <= _constant_value(b, -1) < e.dtype.bits:
            code = Code(f"{w.text(a, UNARY)} {'<<' if name == 'shl' else '>>'} {_constant_value(b)}", SHIFT)
            return c.convert_back(w, code, e.dtype)
        case Op("require") if (limits := bounds_check(e)) is not None:
            return w.call("mlc_require_below", FAILURES, *map(w.text, limits))
        case Op("require", (Op("ne", (a, zero)), value)) if (
            a is value and e.dtype.kind == "int" and _constant_value(zero, -1) == 0
        ):
            return w.call("mlc_require_nonzero", FAILURES, w.text(value))
        case Op("require", (cond, value)) if e.dtype.lanes > 1:
            return w.call("mlc_require", FAILURES, w.text(cond, bits=e.dtype.bits), w.text(value))
        case Op("where", (cond, a, b)) if e.dtype.lanes > 1:
            return w.call("mlc_where", w.text(cond, bits=e.dtype.bits), w.text(a), w.text(b))
    return None


def _may_wrap(w: Writer, e: Expr) -> bool:
    """Whether arithmetic on `e` must wrap, as data may be the minimum: even with -fwrapv, g++ takes x < 0 ? -x : x for
    an absolute value, and one that is not positive for zero. It does neither for vectors, and narrower types are
    computed as int."""
    return e.dtype is i32 or (e.dtype is i64 and is_data(e, w.wrapping))


def _common_bounds_check(cond: Expr) -> tuple[Expr, list[Expr]] | None:
    """The limit n, equal in all lanes, and the vectors whose lanes `cond` requires to be in 0 .. n - 1; or None."""
    match cond:
        case Op("and", (Op("ge", (a, zero)), Op("lt", (b, n)))) if (
            a is b and _constant_value(zero, -1) == 0 and _is_uniform(n)
        ):
            return (n, [a]) if a.dtype.kind == "int" else None
        case Op("and", (left, right)):
            first, second = _common_bounds_check(left), _common_bounds_check(right)
            if first is not None and second is not None and first[0] is second[0]:
                return first[0], [*first[1], *second[1]]
    return None


def bounds_check(e: Expr) -> tuple[Expr, Expr] | None:
    """The value required to be in 0 .. n - 1, and n, equal in all lanes; None for other requirements."""
    match e:
        case Op("require", (Op("and", (Op("ge", (a, zero)), Op("lt", (b, n)))), value)) if (
            a is b is value and e.dtype.kind == "int" and _constant_value(zero, -1) == 0 and _is_uniform(n)
        ):
            return value, n
    return None


def _is_uniform(e: Expr) -> bool:
    """Whether it is the same in every lane."""
    return e.dtype.lanes == 1 or isinstance(e, Const | k.Broadcast)


def _constant_value(e: Expr, default: int = 0) -> int:
    """The integer constant that `e` is in every lane, or `default`."""
    match e:
        case Const(value, dtype) if dtype.is_integer:
            return int(value)
        case k.Broadcast(arg):
            return _constant_value(arg, default)
    return default


def literal(value: float, dtype: DType) -> Code:
    """A scalar literal of a short float."""
    return Code(f"({raw_type(dtype)})0x{short_bits(value, dtype):0{dtype.bits // 4}x}", UNARY)


def short_bits(value: float, dtype: DType) -> int:
    """The bits of a short float, rounded to nearest even."""
    if dtype.replace(lanes=1) in EIGHTHS:
        return float8.bits_of(value, dtype)
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


def _broadcast(w: Writer, scalar: str, dtype: DType) -> Code:
    return w.call("mlc_broadcast", scalar, template=(lane_type(dtype), dtype.lanes))


def _load(w: Writer, e: Load | k.Gather, to: str) -> Code:
    """A load, converted to lanes of the C++ type `to` unless that is empty."""
    dtype = e.dtype
    is_raw = is_short(dtype) and not to
    lane = to or lane_type(dtype)
    if isinstance(e, Load):
        pointer = w.pointer(e.buffer, e.index[0])
        if dtype.lanes == 1 and dtype.kind == "bool":
            return Code(f"{pointer[1:]} != 0", c.EQUAL)
        if dtype.lanes == 1:
            return Code(pointer[1:] + ".bits" if is_raw else pointer[1:])
        load = ("mlc_load_as" if to else "mlc_load") + ("_ahead" if w.ahead else "")
        further = (f"{w.ahead}l",) if w.ahead else ()
        return w.call(load, pointer + (".bits" if is_raw else ""), *further, template=(lane, dtype.lanes))
    strided = affine_lanes(e.index)
    if strided is not None:
        start, step = strided
        pointer = w.pointer(e.buffer, start) + (".bits" if is_raw else "")
        return w.call("mlc_load_strided", pointer, w.plain(step), template=(lane, dtype.lanes))
    common, rest = _split_uniform_offset(e.index)
    if common is not None:
        base = w.pointer(e.buffer, common) + (".bits" if is_raw else "")
    else:
        base = f"(const {raw_type(dtype)}*){w.names[e.buffer]}" if is_raw else w.names[e.buffer]
    offsets = lane_values(rest)
    if offsets is not None:
        return w.call("mlc_load_at", base, template=(lane, *offsets))
    return w.call("mlc_gather", base, w.text(rest), template=(lane,))


def _masked_load(w: Writer, cond: Expr, load: Load, other: Expr) -> Code:
    """A load of the lanes where `cond` holds. No pointer is formed to an element that may not exist."""
    base = w.names[load.buffer]
    if is_short(load.dtype):
        base = f"(const {raw_type(load.dtype)}*){base}"
    mask, lane = w.text(cond, bits=load.dtype.bits), lane_type(load.dtype)
    return w.call("mlc_load_masked", base, w.text(load.index[0]), mask, w.text(other), template=(lane,))


def _split_uniform_offset(e: Expr) -> tuple[Expr | None, Expr]:
    """Split a vector into a scalar that is added in every lane (None if none), and the rest."""
    match e:
        case Op("add", (k.Broadcast(scalar), rest)) | Op("add", (rest, k.Broadcast(scalar))):
            common, rest = _split_uniform_offset(rest)
            return (scalar if common is None else common + scalar), rest
    return None, e


def used_by_lane(body: tuple[k.Stmt, ...]) -> frozenset[str]:
    """Loaded vectors that, once checked, are indices of gathers: their lanes are used one by one."""
    nodes = [n for s in body for n in s.walk()]
    vectors = (n for n in nodes if isinstance(n, k.Declare) and n.value.dtype.lanes > 1)
    value_of: dict[Expr, Expr] = {Var(n.name, n.value.dtype): n.value for n in vectors}
    used = set()
    for index in {_split_uniform_offset(n.index)[1] for n in nodes if isinstance(n, k.Gather)}:
        match value_of.get(index):
            case Op("require", (_, Var(name) as value)) if isinstance(value_of.get(value), Load):
                used.add(name)
    return frozenset(used)


def _cast(w: Writer, arg: Expr, dtype: DType) -> Code:
    """A conversion, fused with a load or a gather."""
    source, lane = arg.dtype, TYPES[dtype.name]
    if is_short(dtype):
        if source.kind == "bool" or is_short(source):
            arg = cast(arg, f32.replace(lanes=source.lanes))
        if arg.dtype.name == "f32":
            return w.call(f"mlc_to_{dtype.name}", w.text(arg))
        return w.call("mlc_to_raw", w.text(arg), template=(lane,))
    if dtype.kind == "bool":  # scalar: vectors of bools are masks
        return Code(f"{_widened(w, arg).at(SHIFT)} != 0", c.EQUAL)
    if source.kind == "bool":
        if source.lanes == 1:
            return Code(f"({lane}){w.text(arg, UNARY)}", UNARY)
        return w.call("mlc_from_mask", w.text(arg, bits=mask_bits(w, arg) or dtype.bits), template=(lane,))
    if isinstance(arg, Load | k.Gather) and (source.lanes > 1):
        return _load(w, arg, lane)
    if is_short(source):
        if dtype.name == "f32":
            return w.call(f"mlc_from_{source.name}", w.text(arg))
        return w.call("mlc_from_raw", w.text(arg), template=(lane, TYPES[source.name]))
    if source.lanes == 1 and not (source.is_float and dtype.is_integer):
        return Code(f"({lane}){w.text(arg, UNARY)}", UNARY)
    if (
        dtype.name == "i32"
        and source.name == "i64"
        and (strided := affine_lanes(arg))
        and isinstance(strided[1], Const)
    ):
        # The low half of a sum is the sum of the low halves.
        start, step = (cast(part, i32) for part in strided)
        return c.expression(w, k.Ramp(start, _constant_value(step), dtype.lanes))
    return w.call("mlc_convert", w.text(arg), template=(lane,))


def _widened(w: Writer, e: Expr) -> Code:
    """`e`, converted to f32 if it is a short float."""
    return _cast(w, e, f32.replace(lanes=e.dtype.lanes)) if is_short(e.dtype) else c.expression(w, e)


def _reduce_lanes(w: Writer, op: str, arg: Expr) -> Code:
    if op == "and" and arg.dtype.lanes > 1 and (limits := _common_bounds_check(arg)) is not None:
        return w.call("mlc_all_below", w.text(limits[0]), *map(w.text, limits[1]))
    if arg.dtype.kind == "bool":
        return w.call({"and": "mlc_all", "min": "mlc_all"}.get(op, "mlc_any"), w.text(arg))
    return w.call(f"mlc_reduce_{_REDUCTIONS[op]}", w.text(arg))


# ---- masks


def mask_bits(w: Writer, e: Expr) -> int:
    """The lane width that a vector of bools is computed from; 0 if any will do."""
    match e:
        case Var(name):
            return w.masks.get(name, 0)
        case Cast(arg):
            return 32 if is_short(arg.dtype) else mask_bits(w, arg) if arg.dtype.kind == "bool" else arg.dtype.bits
        case Op(_, args) if args[-1].dtype.kind != "bool":
            return 0 if narrow_comparison(e, 0, w.ranges) is not None else args[0].dtype.bits
        case Op(_, args):
            return next((bits for a in reversed(args) if (bits := mask_bits(w, a))), 0)
        case Select(_, then, other):
            return mask_bits(w, then) or mask_bits(w, other)
    return 0


def _mask(w: Writer, e: Expr, bits: int) -> Code:
    """A vector of bools as a mask with lanes of `bits`."""
    lane, lanes = MASKS[bits], e.dtype.lanes
    match e:
        case Const(value):
            return w.call("mlc_broadcast_mask", "true" if value else "false", template=(lane, lanes))
        case k.Broadcast(arg):
            return w.call("mlc_broadcast_mask", w.text(arg), template=(lane, lanes))
        case Load(buffer, (index,)):
            return w.call("mlc_load_bools", w.pointer(buffer, index), template=(lane, lanes))
        case k.Gather(buffer, index):
            strided = affine_lanes(index)
            if strided is not None:
                pointer = w.pointer(buffer, strided[0])
                return w.call("mlc_load_strided_bools", pointer, w.plain(strided[1]), template=(lane, lanes))
            return w.call("mlc_gather_bools", w.names[buffer], w.text(index), template=(lane,))
        case Select(cond, then, other):
            return Code(
                f"{w.text(cond, c.LOR)} ? {w.text(then, c.LOR, bits)} : {w.text(other, c.TERNARY, bits)}", c.TERNARY
            )
        case Op("require", (cond, value)):
            return w.call("mlc_require", FAILURES, w.text(cond, bits=bits), w.text(value, bits=bits))
        case Op("where", (cond, then, other)):
            return w.call("mlc_where", *(w.text(x, bits=bits) for x in (cond, then, other)))
        case Op(name, args) if args[0].dtype.kind == "bool":
            return _logic(w, name, args, bits)
    e = narrow_comparison(e, bits, w.ranges) or e
    natural_bits = mask_bits(w, e) or bits
    match e:
        case Var(name):
            code = Code(w.names[name])
        case Cast(arg):
            code = Code(f"{_widened(w, arg).at(SHIFT)} != 0", c.EQUAL)
        case Op("isnan" | "signbit" as name, (arg,)):
            code = w.call(f"mlc_{name}", w.text(arg))
        case Op(name, args) if name in c.INFIX:
            code = c.infix(w, c.INFIX[name], args)
        case _:
            raise ValueError(f"{type(e).__name__} has no meaning on this target")
    return code if natural_bits == bits else w.call("mlc_resize_mask", code.text, template=(lane,))


# On masks of 0 or -1: symbol, and whether the left operand, the right operand and the result are inverted.
_LOGIC = {
    "and": ("&", False, False, False), "or": ("|", False, False, False), "xor": ("^", False, False, False),
    "min": ("&", False, False, False), "max": ("|", False, False, False), "ne": ("^", False, False, False),
    "eq": ("^", False, False, True), "lt": ("&", True, False, False), "gt": ("&", False, True, False),
    "le": ("|", True, False, False), "ge": ("|", False, True, False),
}  # fmt: skip


def _logic(w: Writer, name: str, args: tuple[Expr, ...], bits: int) -> Code:
    if name == "not":
        return Code(f"~{w.text(args[0], UNARY, bits)}", UNARY)
    symbol, first, second, result = _LOGIC[name]
    prefixes = ("~" if inverted else "" for inverted in (first, second))
    operands = [prefix + w.text(a, UNARY, bits) for prefix, a in zip(prefixes, args, strict=True)]
    code = Code(f"{operands[0]} {symbol} {operands[1]}", {"&": c.AND, "|": c.OR, "^": c.XOR}[symbol])
    return Code(f"~({code.text})", UNARY) if result else code
