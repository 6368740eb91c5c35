"""Pointwise ATen ops: tables map names of overloads to their formulas.

Formulas in `ARITHMETIC` get their operands broadcast to the result's shape, in the computing type of the result. Those
in `DISCONTINUOUS` get them in the promoted type of the operands. Rules below the tables are for ops whose operands are
not treated alike.
"""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable, Sequence

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, boolean
from compiler.ir.expr import Const, Expr, cast, const, op
from compiler.ir.functions import FUNCTIONS
from compiler.ir.tensor import numel
from compiler.passes.torch_to_tensor import formula as f
from compiler.passes.torch_to_tensor.builder import (
    Builder,
    Index,
    Operand,
    Rule,
    Value,
    broadcast,
    converted_at,
    element,
    is_one,
    rounded,
)  # fmt: skip

E = Expr
_PROMOTION_ORDER = (boolean, dt.u8, dt.i8, dt.i16, dt.i32, dt.i64, dt.f16, dt.bf16, dt.f32, dt.f64)


def promote(*operands: Operand) -> DType:
    """Torch's type promotion: all operands decide the kind; tensors have priority for the width."""
    tensors = [x.dtype for x in operands if isinstance(x, Value) and x.rank]
    zero_dim = [x.dtype for x in operands if isinstance(x, Value) and not x.rank]
    scalars = [_scalar_type(x) for x in operands if not isinstance(x, Value)]
    out: DType | None = None
    for level in (tensors, zero_dim, scalars):
        if level:
            widest = _widest(level)
            if out is None:
                out = widest
            elif _kind_rank(widest) > _kind_rank(out):
                out = dt.f32 if level is scalars and widest.is_float else widest
    return out or dt.f32


def _scalar_type(x: Operand) -> DType:
    return boolean if isinstance(x, bool) else dt.i64 if isinstance(x, int | Expr) else dt.f32


def _kind_rank(t: DType) -> int:
    return {"bool": 0, "uint": 1, "int": 1, "float": 2}[t.kind]


def _widest(types: Sequence[DType]) -> DType:
    top_rank = max(map(_kind_rank, types))
    candidates = {t for t in types if _kind_rank(t) == top_rank}
    if {dt.f16, dt.bf16} <= candidates:
        candidates |= {dt.f32}
    if dt.u8 in candidates and candidates & {dt.i8}:
        candidates |= {dt.i16}
    return max(candidates, key=_PROMOTION_ORDER.index)


def round_scalar(value: float, dtype: DType) -> float:
    """A Python scalar as a tensor of `dtype` would hold it, rounded to nearest even."""
    if dtype is dt.f16:
        try:
            return float(struct.unpack("e", struct.pack("e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype is dt.bf16 and math.isfinite(value):
        bits = struct.unpack("I", struct.pack("f", dt.rounded(value, dt.f32)))[0]
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("f", struct.pack("I", bits))[0])
    return value


def scalar(b: Builder, value: bool | int | float | E, dtype: DType) -> E:
    """A number as a tensor of `dtype` holds it; a negative one wraps for an unsigned type."""
    if isinstance(value, Expr):
        return rounded(value, dtype)
    if dtype is boolean or dtype.is_float:
        return const(round_scalar(float(value), dtype), dt.compute(dtype))
    low, high = dt.integer_range(dtype)
    if not min(low, -high) <= int(value) <= high:
        raise b.refuse(f"{value} is not a value of type {dtype}")
    return const(int(value) if low else int(value) % (high + 1), dtype)


def pointwise(formula: Callable[..., E]) -> Callable[..., Value]:
    """The rule of a formula: its parameters of type `E` are the operands, in the computing type of the result."""
    return _make_rule(formula, lambda b, operands: dt.compute(b.out.dtype), _load_converted)


def discontinuous(formula: Callable[..., E]) -> Callable[..., Value]:
    """The rule of a discontinuous formula, such as a comparison or a remainder, on operands in their promoted type.

    Operands are as torch would have stored them, so that values are equal here if they are in torch, as an element and
    its row's amax.
    """
    return _make_rule(formula, lambda b, operands: promote(*operands), _load_stored)


def _make_rule(
    formula: Callable[..., E], operand_dtype: Callable[[Builder, list[Operand]], DType],
    load: Callable[[Operand, Index, DType], E],
) -> Callable[..., Value]:  # fmt: skip
    signature = inspect.signature(formula)
    operands = [p.name for p in signature.parameters.values() if p.annotation in ("E", inspect.Parameter.empty)]

    def rule(b: Builder, *args: object, **kwargs: object) -> Value:
        bound = signature.bind(*args, **kwargs).arguments
        values = [_operand(bound.pop(name)) for name in operands]
        dtype = operand_dtype(b, values)
        try:
            return b.map(b.out.shape, lambda at: formula(*(load(x, at, dtype) for x in values), **bound))
        except (TypeError, ValueError) as problem:
            raise b.refuse(str(problem)) from problem

    builder = inspect.Parameter("builder", inspect.Parameter.POSITIONAL_ONLY)
    rule.__signature__ = inspect.Signature([builder, *signature.parameters.values()])  # type: ignore[attr-defined]
    return rule


def _operand(x: object) -> Operand:
    if isinstance(x, Value | bool | int | float | Expr):
        return x
    raise TypeError(f"{x!r} is neither a tensor nor a number")


def _load_converted(x: Operand, at: Index, dtype: DType) -> E:
    """An operand as `dtype`, in its computing type; a 16-bit type rounds operands of other types, as in torch."""
    if dtype not in dt.STORAGE_ONLY:
        return element(x, at, dtype)
    if not isinstance(x, Value | Expr):
        return const(round_scalar(float(x), dtype), dt.compute(dtype))
    value = element(x, at, dt.compute(dtype))
    return value if isinstance(x, Value) and x.dtype is dtype else rounded(value, dtype)


def _load_widened(x: Operand, at: Index, dtype: DType) -> E:
    """An operand in the computing type of `dtype`; an element of a tensor is rounded to its own type."""
    wide = dt.compute(dtype)
    return cast(x.rounded_at(broadcast(x, at)), wide) if isinstance(x, Value) else element(x, at, wide)


def _load_stored(x: Operand, at: Index, dtype: DType) -> E:
    """An operand as a tensor of `dtype` holds it, in its computing type."""
    value = _load_converted(x, at, dtype)
    return rounded(value, dtype) if dtype in dt.STORAGE_ONLY and not isinstance(value, Const) else value


def _unary(name: str) -> Callable[[E], E]:
    return lambda x: op(name, x)


def _binary(name: str) -> Callable[[E, E], E]:
    return lambda a, b: op(name, a, b)


def _rounding(name: str) -> Callable[[E], E]:
    """A rounding function, which is the identity for integers."""
    return lambda x: op(name, x) if x.dtype.is_float else x


# A name without a dot is the overload `default`; `*` stands for each of _TENSOR_OR_SCALAR.
# fmt: off
ARITHMETIC: dict[str, Callable[..., E]] = {
    "sqrt": _unary("sqrt"),
    **{name: (_unary, _binary)[row.arity - 1](row.name) for row in FUNCTIONS.values() for name in row.torch},
    "special_expit": f.sigmoid,
    "abs": lambda x: x if x.dtype.kind in ("uint", "bool") else op("abs", x),
    "neg": _unary("neg"), "positive": lambda x: x, "bitwise_not": _unary("not"),
    "reciprocal": lambda x: f.lit(1, x) / x, "square": lambda x: f.mul(x, x),
    "sigmoid": f.sigmoid, "silu": f.silu, "mish": f.mish, "relu": f.relu, "relu6": lambda x: f.hardtanh(x, 0, 6),
    "selu": f.selu, "hardsigmoid": f.hardsigmoid, "hardswish": f.hardswish, "log_sigmoid": f.log_sigmoid,
    "hardtanh": f.hardtanh, "elu": f.elu, "celu": f.celu, "leaky_relu": f.leaky_relu, "gelu": f.gelu,
    "softplus": f.softplus, "softshrink": f.softshrink,
    "softsign": lambda x: x / (op("abs", x) + 1.0), "logit": f.logit,
    "deg2rad": lambda x: x * (math.pi / 180), "rad2deg": lambda x: x * (180 / math.pi),
    "mul.*": f.mul, "div.*": lambda a, b: a / b, "true_divide.*": lambda a, b: a / b,
    "maximum": _binary("max"), "minimum": _binary("min"), "max.other": _binary("max"), "min.other": _binary("min"),
    "fmax": f.ignoring_nan("max"), "fmin": f.ignoring_nan("min"), "hypot": f.hypot, "logaddexp": f.logaddexp,
    "copysign.*": lambda a, b: f.where(op("xor", f.signbit(a), f.signbit(b)), op("neg", a), a),
    "xlogy.Tensor": f.xlogy, "xlogy.Scalar_Other": f.xlogy, "xlogy.Scalar_Self": f.xlogy,
    "gcd": _binary("gcd"), "lcm": f.lcm,
    "_prelu_kernel": f.prelu, "lerp.*": f.lerp,
    "bitwise_and.*": _binary("and"), "bitwise_or.*": _binary("or"), "bitwise_xor.*": _binary("xor"),
    "__and__.*": _binary("and"), "__or__.*": _binary("or"), "__xor__.*": _binary("xor"),
    "bitwise_and.Scalar_Tensor": _binary("and"), "bitwise_or.Scalar_Tensor": _binary("or"),
    "bitwise_xor.Scalar_Tensor": _binary("xor"),
    "bitwise_left_shift.Tensor": f.left_shift, "bitwise_left_shift.Tensor_Scalar": f.left_shift,
    "bitwise_left_shift.Scalar_Tensor": f.left_shift, "bitwise_right_shift.Tensor": f.right_shift,
    "bitwise_right_shift.Tensor_Scalar": f.right_shift, "bitwise_right_shift.Scalar_Tensor": f.right_shift,
    "__lshift__.*": f.left_shift, "__rshift__.*": f.right_shift,
}
DISCONTINUOUS: dict[str, Callable[..., E]] = {
    **{f"{name}.*": _binary(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "logical_and": lambda a, b: op("and", f.as_bool(a), f.as_bool(b)),
    "logical_or": lambda a, b: op("or", f.as_bool(a), f.as_bool(b)),
    "logical_xor": lambda a, b: op("xor", f.as_bool(a), f.as_bool(b)), "logical_not": lambda a: op("not", f.as_bool(a)),
    "isnan": lambda x: op("isnan", x) if x.dtype.is_float else const(False, boolean),
    "isinf": f.is_infinite, "isposinf": lambda x: f.is_infinite(x, "+"), "isneginf": lambda x: f.is_infinite(x, "-"),
    "isfinite": f.is_finite, "signbit": f.signbit,
    "fmod.*": f.fmod, "remainder.*": f.remainder, "remainder.Scalar_Tensor": f.remainder,
    **{name: _rounding(name) for name in ("ceil", "floor", "trunc", "round")}, "fix": _rounding("trunc"),
    "round.decimals": f.round_decimals, "frac": lambda x: x - op("trunc", x), "sign": f.sign, "sgn": f.sign,
    "threshold": f.threshold, "hardshrink": f.hardshrink,
}
# fmt: on
_TENSOR_OR_SCALAR = ("Tensor", "Scalar")


def overloads(name: str) -> list[str]:
    op_name, _, overload = name.partition(".")
    return [f"aten.{op_name}.{o}" for o in (_TENSOR_OR_SCALAR if overload == "*" else (overload or "default",))]


def add(b: Builder, self: Operand, other: Operand, alpha: float = 1) -> Value:
    _check_factor(b, alpha)
    return pointwise(lambda x, y: f.add(x, _multiply_by(b, y, alpha)))(b, self, other)


def sub(b: Builder, self: Operand, other: Operand, alpha: float = 1) -> Value:
    _check_factor(b, alpha)
    return pointwise(lambda x, y: x - _multiply_by(b, y, alpha))(b, self, other)


def rsub(b: Builder, self: Operand, other: Operand, alpha: float = 1) -> Value:
    return sub(b, other, self, alpha)


def _check_factor(b: Builder, alpha: float) -> None:
    """Refuse, as torch does, a bool for a result that is not bool, and a float for a result of integers."""
    if isinstance(alpha, bool) and b.out.dtype is not boolean:
        raise b.refuse("alpha is a truth value, and the result is none")
    if isinstance(alpha, float) and not b.out.dtype.is_float:
        raise b.refuse("alpha is a fraction, and the result is none")


def _multiply_by(b: Builder, x: E, alpha: float) -> E:
    return x if alpha == 1 else f.mul(x, scalar(b, alpha, x.dtype))


def div_mode(b: Builder, self: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    match rounding_mode:
        case None:
            return pointwise(lambda x, y: x / y)(b, self, other)
        case "trunc":
            return _make_rule(f.truncating_divide, lambda b, operands: b.out.dtype, _load_widened)(b, self, other)
        case "floor":
            return floor_divide(b, self, other)
    raise b.refuse("rounding_mode is None, 'floor' or 'trunc'")


def floor_divide(b: Builder, self: Operand, other: Operand) -> Value:
    dtype = dt.compute(b.out.dtype)
    if not dtype.is_float:
        return pointwise(lambda x, y: x // f.divisor(y))(b, self, other)

    def operands_at(at: Index) -> tuple[E, E]:
        return _load_widened(self, at, b.out.dtype), _load_widened(other, at, b.out.dtype)

    left_over = b.map(b.out.shape, lambda at: op("rem", *operands_at(at)), "remainder")
    quotient = b.map(b.out.shape, lambda at: f.floored_quotient(*operands_at(at), left_over.at(at)), "quotient")
    return b.map(b.out.shape, lambda at: f.floored(quotient.at(at), *operands_at(at)))


def clamp(b: Builder, self: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    """NaN in any operand gives NaN; if the bounds cross, `max` wins."""
    for bound in (min, max):
        if isinstance(bound, int):
            scalar(b, bound, b.out.dtype)
    if min is None:
        return pointwise(lambda x, high: op("min", x, high))(b, self, max)
    if max is None:
        return pointwise(lambda x, low: op("max", x, low))(b, self, min)
    return pointwise(lambda x, low, high: op("min", op("max", x, low), high))(b, self, min, max)


def clamp_min(b: Builder, self: Value, min: Operand) -> Value:
    return clamp(b, self, min)


def clamp_max(b: Builder, self: Value, max: Operand) -> Value:
    return clamp(b, self, None, max)


def where(b: Builder, condition: Value, self: Operand, other: Operand) -> Value:
    if condition.dtype.kind not in ("bool", "uint"):
        raise b.refuse("the condition is not of type bool")
    for x in (self, other):
        if isinstance(x, int):
            scalar(b, x, b.out.dtype)
    dtype = dt.compute(b.out.dtype)
    return b.map(
        b.out.shape,
        lambda at: f.where(element(condition, at, boolean), element(self, at, dtype), element(other, at, dtype)),
    )


def prelu(b: Builder, self: Value, weight: Value) -> Value:
    """One slope for all, or one for each channel (dimension 1)."""
    dtype = self.compute
    channel = 1 if self.rank > 1 else 0
    single = is_one(numel(weight.shape))

    def formula(at: Index) -> E:
        slope = weight.at([0] * weight.rank) if single else weight.at([at[channel]])
        return f.prelu(self.at(at), cast(slope, dtype))

    return b.map(self.shape, formula)


def addcmul(b: Builder, self: Operand, tensor1: Operand, tensor2: Operand, value: float = 1) -> Value:
    return pointwise(lambda x, y, z: x + _multiply_by(b, y, value) * z)(b, self, tensor1, tensor2)


def addcdiv(b: Builder, self: Operand, tensor1: Operand, tensor2: Operand, value: float = 1) -> Value:
    return pointwise(lambda x, y, z: x + _multiply_by(b, y, value) / z)(b, self, tensor1, tensor2)


def heaviside(b: Builder, self: Value, values: Value) -> Value:
    if self.dtype is not values.dtype:
        raise b.refuse("tensors of different types")
    return discontinuous(f.heaviside)(b, self, values)


_LARGEST = {
    dt.f64: 1.7976931348623157e308,
    dt.f32: 3.4028234663852886e38,
    dt.bf16: 3.3895313892515355e38,
    dt.f16: 65504.0,
}


def nan_to_num(
    b: Builder, self: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    largest = _LARGEST.get(self.dtype, 0.0)
    high, low = largest if posinf is None else posinf, -largest if neginf is None else neginf
    return pointwise(lambda x: f.nan_to_num(x, 0.0 if nan is None else nan, high, low))(b, self)


def convert(
    b: Builder, self: Value | float, dtype: DType | None = None, memory_format: str | None = None,
    non_blocking: bool = False,
) -> Value:  # fmt: skip
    """Convert to another element type; a conversion to a 16-bit float rounds. `vmap` converts numbers too."""
    del memory_format, non_blocking  # given by the result's strides
    if not isinstance(self, Value):
        number = scalar(b, self, b.out.dtype)
        return b.map((), lambda at: number)
    target = dtype or self.dtype
    if target is self.dtype:
        return self
    return b.map(self.shape, lambda at: converted_at(self, at, target))


def to_dtype(
    b: Builder,
    self: Value,
    dtype: DType,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: str | None = None,
) -> Value:
    del non_blocking, copy
    return convert(b, self, dtype, memory_format)


def identity(b: Builder, self: Value, memory_format: str | None = None) -> Value:
    """The value itself: copies and aliases differ in storage only."""
    del memory_format
    return self


def view_dtype(b: Builder, self: Value, dtype: DType) -> Value:
    """Return the value itself; only a view as its own element type is supported."""
    if dtype is not self.dtype:
        raise b.refuse("bits are not looked at as another element type")
    return self


def dropout(b: Builder, input: Value, p: float, train: bool) -> Value:
    if train and p:
        raise b.refuse("dropout while training is random")
    return input


RULES: dict[str, Rule] = {
    **{overload: pointwise(formula) for name, formula in ARITHMETIC.items() for overload in overloads(name)},
    **{overload: discontinuous(formula) for name, formula in DISCONTINUOUS.items() for overload in overloads(name)},
    "aten.add.Tensor": add, "aten.add.Scalar": add, "aten.sub.Tensor": sub, "aten.sub.Scalar": sub,
    "aten.rsub.Tensor": rsub, "aten.rsub.Scalar": rsub,
    "aten.floor_divide.default": floor_divide, "aten.floor_divide.Scalar": floor_divide,
    "aten.div.Tensor_mode": div_mode, "aten.div.Scalar_mode": div_mode,
    "aten.clamp.default": clamp, "aten.clamp.Tensor": clamp, "aten.clamp_min.default": clamp_min,
    "aten.clamp_min.Tensor": clamp_min, "aten.clamp_max.default": clamp_max, "aten.clamp_max.Tensor": clamp_max,
    "aten.where.self": where, "aten.where.ScalarSelf": where, "aten.where.ScalarOther": where,
    "aten.where.Scalar": where,
    "aten.prelu.default": prelu, "aten.addcmul.default": addcmul, "aten.addcdiv.default": addcdiv,
    "aten.heaviside.default": heaviside,
    "aten.nan_to_num.default": nan_to_num, "aten._to_copy.default": convert, "aten.to.dtype": to_dtype,
    "prims.convert_element_type.default": convert, "prims.fma.default": pointwise(lambda a, b, c: op("fma", a, b, c)),
    "aten.clone.default": identity, "aten.alias.default": identity, "aten.detach.default": identity,
    "aten.contiguous.default": identity, "aten.lift_fresh_copy.default": identity, "aten.dropout.default": dropout,
    "aten.view.dtype": view_dtype,
}  # fmt: skip
