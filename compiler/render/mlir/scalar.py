"""Scalar expressions as operations of `arith`, `math` and `scf`, with a defined result for every argument."""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace

from compiler.errors import Unsupported
from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, boolean, f32, f64, i32, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var
from compiler.ir.functions import FUNCTIONS
from compiler.render.mlir.text import Block, Value, Values, element

# The flag that `require` sets on failure: an argument of the function, after all tensors.
INVALID = Value("%invalid", "memref<i8>")

_FLOAT, _INT, _UINT, _BOOL = "float", "int", "uint", "bool"
# The operation for each kind of type, if one has the same meaning for all arguments.
_DIRECT: dict[str, dict[str, str]] = {
    "add": {_FLOAT: "arith.addf", _INT: "arith.addi", _UINT: "arith.addi"},
    "sub": {_FLOAT: "arith.subf", _INT: "arith.subi", _UINT: "arith.subi"},
    "mul": {_FLOAT: "arith.mulf", _INT: "arith.muli", _UINT: "arith.muli"},
    "div": {_FLOAT: "arith.divf"},
    "rem": {_FLOAT: "arith.remf"},
    "neg": {_FLOAT: "arith.negf"},
    "abs": {_FLOAT: "math.absf"},
    "min": {_FLOAT: "arith.minimumf", _INT: "arith.minsi", _UINT: "arith.minui", _BOOL: "arith.andi"},
    "max": {_FLOAT: "arith.maximumf", _INT: "arith.maxsi", _UINT: "arith.maxui", _BOOL: "arith.ori"},
    **{name: dict.fromkeys((_INT, _UINT, _BOOL), f"arith.{name}i") for name in ("and", "or", "xor")},
    **{name: {_FLOAT: f"math.{name}"} for name in ("floor", "ceil", "trunc", "sqrt", "fma")},
    "round": {_FLOAT: "math.roundeven"},
    "where": dict.fromkeys((_FLOAT, _INT, _UINT, _BOOL), "arith.select"),
    **{name: {_FLOAT: f"math.{name}"} for name in FUNCTIONS if name not in ("pow", "lgamma", "exp2_ftz")},
    "pow": {_FLOAT: "math.powf"},
}
# Predicates of comparisons: of floats (ordered, except `ne`), of signed and of unsigned integers.
_COMPARE = {"eq": (1, 0, 0), "ne": (13, 1, 1), "lt": (4, 2, 6), "le": (5, 3, 7), "gt": (2, 4, 8), "ge": (3, 5, 9)}
# Functions of f32 that the C library computes less exactly than allowed here, so they are computed in f64.
_COMPUTED_IN_F64 = ("acosh", "asinh", "atanh", "cosh", "erfc", "lgamma", "pow", "sinh", "tanh", "tan")


@dataclass(frozen=True)
class Scope:
    """The environment of expressions: indices of axes, tensors, and values computed so far, including loads that are
    arguments of the block."""

    axes: Mapping[str, Value]
    tensors: Mapping[str, Value]
    known: MutableMapping[Expr, Value]

    def inner(self) -> Scope:
        """The scope of a nested region, whose values are not visible outside."""
        return replace(self, known=ChainMap({}, self.known))


def must_be_guarded(e: Expr) -> bool:
    """Whether an expression must only be evaluated where it is needed: it has a load or a requirement."""
    return any(isinstance(n, Load) or (isinstance(n, Op) and n.name == "require") for n in e.walk())


def lower(e: Expr, b: Block, scope: Scope) -> Value:
    """The value of `e`, computed once per region."""
    value = scope.known.get(e)
    if value is None:
        value = scope.known[e] = _lower(e, b, scope)
    return value


def _lower(e: Expr, b: Block, scope: Scope) -> Value:
    match e:
        case Const(value, dtype):
            return b.constant(value, dtype)
        case Var(name):
            return b.op("arith.index_cast", (scope.axes[name],), "i64")
        case Load(buffer, index, dtype):
            at = [as_index(i, b, scope) for i in index]
            return b.op("tensor.extract", (scope.tensors[buffer], *at), element(dtype))
        case Cast(arg, dtype):
            return convert(lower(arg, b, scope), arg.dtype, dtype, b)
        case Select(cond, then, other):
            return _select(cond, then, other, b, scope)
        case Op("require", (cond, value)):
            return _require(cond, value, b, scope)
        case Op(name, args):
            return apply(name, [lower(a, b, scope) for a in args], args[-1].dtype, b, _has_positive_divisor(args))
    raise TypeError(type(e).__name__)


def _has_positive_divisor(args: tuple[Expr, ...]) -> bool:
    """Whether the last argument is a positive integer literal."""
    return isinstance(args[-1], Const) and not args[-1].dtype.is_float and args[-1].value > 0


def as_index(e: Expr, b: Block, scope: Scope) -> Value:
    """The value of an index, as MLIR's `index` type."""
    if isinstance(e, Var) and e.name in scope.axes:
        return scope.axes[e.name]
    if isinstance(e, Const):
        return b.index(int(e.value))
    return b.op("arith.index_cast", (lower(e, b, scope),), "index")


def _select(cond: Expr, then: Expr, other: Expr, b: Block, scope: Scope) -> Value:
    condition = lower(cond, b, scope)
    if not any(must_be_guarded(x) and x not in scope.known for x in (then, other)):
        return b.op("arith.select", (condition, lower(then, b, scope), lower(other, b, scope)))

    def side(e: Expr) -> Callable[[Block, tuple[Value, ...]], Values]:
        return lambda inner, _: (lower(e, inner, scope.inner()),)

    return b.if_else(condition, side(then), side(other), element(then.dtype))


def _require(cond: Expr, value: Expr, b: Block, scope: Scope) -> Value:
    def failed(inner: Block, _: tuple[Value, ...]) -> Values:
        inner.do("memref.store", (inner.constant(1, dt.i8), INVALID))
        return (inner.constant(0, value.dtype),)

    condition = lower(cond, b, scope)
    return b.if_else(condition, lambda inner, _: (lower(value, inner, scope.inner()),), failed, element(value.dtype))


# ---- operations on values


def compare(predicate: str, x: Value, y: Value, dtype: DType, b: Block) -> Value:
    number = _COMPARE[predicate][0 if dtype.is_float else 1 if dtype.kind == "int" else 2]
    return b.op(f"arith.cmp{'f' if dtype.is_float else 'i'}", (x, y), "i1", f"predicate = {number} : i64")


def apply(name: str, args: Values, dtype: DType, b: Block, positive: bool = False) -> Value:
    """`expr.OPS[name]` of values; `dtype` is the type of the last one, which `positive` declares to be positive."""
    if name in _COMPARE:
        return compare(name, args[0], args[1], dtype, b)
    if name in _COMPUTED_IN_F64 and dtype is f32:
        wide = [convert(a, f32, f64, b) for a in args]
        return convert(apply(name, wide, f64, b), f64, f32, b)
    direct = _DIRECT.get(name, {}).get(dtype.kind)
    if direct is not None:
        return b.op(direct, args)
    if name in ("truncdiv", "rem", "mod", "floordiv") and not dtype.is_float:
        return _divide(name, args[0], args[1], dtype, b, positive)
    if name in _COMPOUND:
        return _COMPOUND[name](*args, dtype=dtype, b=b)
    raise Unsupported("mlir", [f"{name} of {dtype}"], "linalg has no operation for it")


def _divide(name: str, x: Value, y: Value, dtype: DType, b: Block, positive: bool) -> Value:
    """Integer division: by 0 it gives 0, and the minimum by -1 wraps; the instruction would trap."""
    signed = dtype.kind == "int"
    sign_letter = "s" if signed else "u"
    zero = b.constant(0, dtype)
    divisor, is_minus_one, is_zero = y, None, None
    if not positive:
        is_zero = compare("eq", y, zero, dtype, b)
        is_unsafe = is_zero
        if signed:
            is_minus_one = compare("eq", y, b.constant(-1, dtype), dtype, b)
            is_unsafe = b.op("arith.ori", (is_zero, is_minus_one))
        divisor = b.op("arith.select", (is_unsafe, b.constant(1, dtype), y))
    remainder = functools.partial(b.op, f"arith.rem{sign_letter}i", (x, divisor))
    if name == "rem":
        return remainder()
    if name == "mod":
        r = remainder()
        if not signed:
            return r
        needs_correction = compare("lt", r, zero, dtype, b) if positive else _signs_differ(r, y, dtype, b)
        return b.op("arith.select", (needs_correction, b.op("arith.addi", (r, y)), r))
    q = b.op(f"arith.div{sign_letter}i", (x, divisor))
    if is_minus_one is not None:
        q = b.op("arith.select", (is_minus_one, b.op("arith.subi", (zero, x)), q))
    if name == "floordiv" and signed:
        down = b.op("arith.subi", (q, b.constant(1, dtype)))
        needs_correction = (
            compare("lt", remainder(), zero, dtype, b) if positive else _signs_differ(remainder(), y, dtype, b)
        )
        q = b.op("arith.select", (needs_correction, down, q))
    return q if is_zero is None else b.op("arith.select", (is_zero, zero, q))


def _signs_differ(r: Value, y: Value, dtype: DType, b: Block) -> Value:
    """Whether the remainder is nonzero and differs in sign from the divisor."""
    zero = b.constant(0, dtype)
    negative = [compare("lt", v, zero, dtype, b) for v in (r, y)]
    return b.op("arith.andi", (compare("ne", r, zero, dtype, b), b.op("arith.xori", negative)))


def _floor_mod(x: Value, y: Value, dtype: DType, b: Block) -> Value:
    """Of floats; a zero remainder keeps the sign of `x`."""
    r = b.op("arith.remf", (x, y))
    return b.op("arith.select", (_signs_differ(r, y, dtype, b), b.op("arith.addf", (r, y)), r))


def _floor_divide(x: Value, y: Value, dtype: DType, b: Block) -> Value:
    """Of floats; consistent with the remainder even where `x / y` rounds up."""
    zero, one = b.constant(0.0, dtype), b.constant(1.0, dtype)
    quotient = b.op("arith.divf", (x, y))
    r = b.op("arith.remf", (x, y))
    d = b.op("arith.divf", (b.op("arith.subf", (x, r)), y))
    d = b.op("arith.select", (_signs_differ(r, y, dtype, b), b.op("arith.subf", (d, one)), d))
    down = b.op("math.floor", (d,))
    rounds_up = compare("gt", b.op("arith.subf", (d, down)), b.constant(0.5, dtype), dtype, b)
    rounded = b.op("arith.select", (rounds_up, b.op("arith.addf", (down, one)), down))
    bits = b.op("arith.bitcast", (quotient,), element(_integer_of_width(dtype)))
    sign = b.op("arith.andi", (bits, b.constant(-(2 ** (dtype.bits - 1)), _integer_of_width(dtype))))
    signed_zero = b.op("arith.bitcast", (sign,), element(dtype))
    floor_quotient = b.op("arith.select", (compare("eq", d, zero, dtype, b), signed_zero, rounded))
    return b.op("arith.select", (compare("eq", y, zero, dtype, b), quotient, floor_quotient))


def _negate(x: Value, *, dtype: DType, b: Block) -> Value:
    return b.op("arith.subi", (b.constant(0, dtype), x))


def _magnitude(x: Value, *, dtype: DType, b: Block) -> Value:
    return x if dtype.kind == "uint" else b.op("arith.maxsi", (x, _negate(x, dtype=dtype, b=b)))


def _sign(x: Value, *, dtype: DType, b: Block) -> Value:
    zero, one = b.constant(0, dtype), b.constant(1, dtype)
    minus_one = apply("neg", (one,), dtype, b)
    positive = b.op("arith.select", (compare("gt", x, zero, dtype, b), one, zero))
    if dtype.kind == "uint":
        return positive
    return b.op("arith.select", (compare("lt", x, zero, dtype, b), minus_one, positive))


def _invert(x: Value, *, dtype: DType, b: Block) -> Value:
    ones = b.constant(True if dtype is boolean else -1, dtype)
    return b.op("arith.xori", (x, ones))


def _shift(x: Value, count: Value, *, dtype: DType, b: Block, left: bool) -> Value:
    """A shift by a negative count, or by at least the width, gives 0, or copies of the sign bit (arithmetic right)."""
    width = b.constant(dtype.bits - 1, dtype)
    is_below_width = b.op("arith.cmpi", (count, width), "i1", "predicate = 7 : i64")
    clamped = b.op("arith.select", (is_below_width, count, width))
    if not left and dtype.kind == "int":
        return b.op("arith.shrsi", (x, clamped))
    shifted = b.op("arith.shli" if left else "arith.shrui", (x, clamped))
    return b.op("arith.select", (is_below_width, shifted, b.constant(0, dtype)))


def _is_nan(x: Value, *, dtype: DType, b: Block) -> Value:
    return b.op("arith.cmpf", (x, x), "i1", "predicate = 14 : i64")


def _integer_of_width(dtype: DType) -> DType:
    return i64 if dtype is f64 else i32


def _sign_bit(x: Value, *, dtype: DType, b: Block) -> Value:
    integer = _integer_of_width(dtype)
    return compare("lt", b.op("arith.bitcast", (x,), element(integer)), b.constant(0, integer), integer, b)


def _tf32(x: Value, *, dtype: DType, b: Block) -> Value:
    integer, unit = _integer_of_width(dtype), 1 << (42 if dtype is f64 else 13)
    bits = b.op("arith.bitcast", (x,), element(integer))
    bits = b.op("arith.addi", (bits, b.constant(unit // 2, integer)))
    rounded = b.op("arith.bitcast", (b.op("arith.andi", (bits, b.constant(-unit, integer))),), element(dtype))
    return b.op("arith.select", (_is_nan(x, dtype=dtype, b=b), x, rounded))


def _exp2_ftz(x: Value, *, dtype: DType, b: Block) -> Value:
    power = b.op("math.exp2", (x,))
    tiny = b.constant(2.0 ** (-1022 if dtype is f64 else -126), dtype)
    return b.op("arith.select", (compare("lt", power, tiny, dtype, b), b.constant(0.0, dtype), power))


def _log_gamma(x: Value, *, dtype: DType, b: Block) -> Value:
    """MLIR has no operation for it; the C library's function is declared where it is called."""
    return b.op("func.call", (x,), element(dtype), "callee = @lgamma")


_COMPOUND: dict[str, Callable[..., Value]] = {
    "floordiv": _floor_divide, "mod": _floor_mod, "neg": _negate, "abs": _magnitude, "sign": _sign, "not": _invert,
    "shl": functools.partial(_shift, left=True), "shr": functools.partial(_shift, left=False),
    "isnan": _is_nan, "signbit": _sign_bit, "tf32": _tf32, "exp2_ftz": _exp2_ftz, "lgamma": _log_gamma,
}  # fmt: skip


def convert(x: Value, source: DType, target: DType, b: Block) -> Value:
    """Convert `x` from `source` to `target`; NaN and values out of an integer's range give its minimum."""
    if source is target:
        return x
    if target is boolean:
        return compare("ne", x, b.constant(0, source), source, b)
    if target.is_float:
        return _to_float(x, source, target, b)
    if source.is_float:
        return _to_integer(x, source, target, b)
    if source.bits > target.bits and source is not boolean:
        return b.op("arith.trunci", (x,), element(target))
    if source.bits == target.bits and source is not boolean:
        return x
    return b.op("arith.extsi" if source.kind == "int" else "arith.extui", (x,), element(target))


def _to_float(x: Value, source: DType, target: DType, b: Block) -> Value:
    """Conversions to 16 bits go through f32, as in torch."""
    if target.bits == 16 and source is not f32:
        return convert(convert(x, source, f32, b), f32, target, b)
    if source.is_float:
        return b.op("arith.extf" if source.bits < target.bits else "arith.truncf", (x,), element(target))
    return b.op("arith.sitofp" if source.kind == "int" else "arith.uitofp", (x,), element(target))


def _to_integer(x: Value, source: DType, target: DType, b: Block) -> Value:
    """Integers narrower than 32 bits are truncated from 32."""
    if source.bits == 16:
        return convert(convert(x, source, f32, b), f32, target, b)
    wide = i64 if target is i64 else i32
    limit = 2.0 ** (wide.bits - 1)
    truncated = b.op("math.trunc", (x,))
    low = b.constant(-limit, source)
    in_range = [
        compare("ge", truncated, low, source, b),
        compare("lt", truncated, b.constant(limit, source), source, b),
    ]
    safe = b.op("arith.select", (b.op("arith.andi", in_range), truncated, low))
    return convert(b.op("arith.fptosi", (safe,), element(wide)), wide, target, b)
