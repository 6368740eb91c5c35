"""Creation of tensors: constants, ranges, identity matrices and one-hot masks."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir import dtype as dt
from compiler.ir.dtype import DType, f64, i64
from compiler.ir.expr import Expr, cast, const, op
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, converted_at, rounded
from compiler.passes.torch_to_tensor.pointwise import scalar
from compiler.passes.torch_to_tensor.positions import require_in_range

Number = bool | int | float


def constant(b: Builder, value: Number | Expr) -> Value:
    """The declared result filled with a number."""
    declared = b.out
    fill = scalar(b, value, declared.dtype)
    return b.map(declared.shape, lambda at: fill)


def constant_rule(value: Number) -> Rule:
    """`zeros` and `ones`; also `empty`, whose undefined values are zeros here."""

    def rule(b: Builder, *size: object, **options: object) -> Value:
        del size, options  # given by the declared result
        return constant(b, value)

    return rule


def full(b: Builder, size: object, fill_value: Number, **options: object) -> Value:
    """`full` and `full_like`."""
    del size, options
    return constant(b, fill_value)


def new_full(b: Builder, self: Value, size: Sequence[int], fill_value: Number, **options: object) -> Value:
    del self, size, options
    return constant(b, fill_value)


def fill(b: Builder, self: Value, value: Number | Value) -> Value:
    if isinstance(value, Value):
        return b.map(self.shape, lambda at: converted_at(value, (), self.dtype))
    return constant(b, value)


def scalar_tensor(b: Builder, s: Number, *, dtype: DType | None = None) -> Value:
    del dtype
    return constant(b, s)


def arange(
    b: Builder, start: Number | Expr, end: Number | Expr, step: Number | Expr = 1, *, dtype: DType | None = None
) -> Value:
    """Computed in i64 if start and step are integers, else in f64, and rounded once."""
    del end, dtype  # given by the declared result
    result_dtype = b.out.dtype
    is_exact = not result_dtype.is_float or all(
        isinstance(x, int) or (isinstance(x, Expr) and x.dtype is i64) for x in (start, step)
    )
    compute_type = i64 if is_exact else f64
    first, stride = (
        cast(x, compute_type) if isinstance(x, Expr) else const((int if is_exact else float)(x), compute_type)
        for x in (start, step)
    )

    def element(at: Index) -> Expr:
        return rounded(cast(at[0], compute_type) * stride + first, result_dtype)

    return b.map(b.out.shape, element)


def arange_to(b: Builder, end: Number | Expr, *, dtype: DType | None = None) -> Value:
    return arange(b, 0, end, dtype=dtype)


def _end(b: Builder, value: Number | Expr, dtype: DType) -> Expr:
    """An end of a range in f64; an integer for integer types."""
    if dtype.is_float:
        return cast(value, f64) if isinstance(value, Expr) else const(float(value), f64)
    return cast(scalar(b, value, dtype), f64)


def linspace(b: Builder, start: Number | Expr, end: Number | Expr, steps: int, *, dtype: DType | None = None) -> Value:
    """Computed from both ends to the middle, so that the ends are exact.

    A fused multiply-add is used because the rounding of the product decides which integer is below.
    """
    del dtype
    result_dtype = b.out.dtype
    first, last = (_end(b, x, result_dtype) for x in (start, end))
    step = (last - first) / (steps - 1.0) if steps > 1 else const(0.0, f64)

    def element(at: Index) -> Expr:
        up = op("fma", cast(at[0], f64), step, first)
        down = op("fma", cast(at[0] - (steps - 1), f64), step, last)
        return rounded(op("where", op("lt", at[0], max(steps // 2, 1)), up, down), result_dtype)

    return b.map(b.out.shape, element)


def eye(b: Builder, *size: int, dtype: DType | None = None) -> Value:
    del size, dtype
    return b.map(b.out.shape, lambda at: cast(op("eq", at[0], at[1]), dt.compute(b.out.dtype)))


def one_hot(b: Builder, self: Value, num_classes: int = -1) -> Value:
    """Rows with a single 1."""
    del num_classes
    return b.map(
        b.out.shape, lambda at: cast(op("eq", require_in_range(self.at(at[:-1]), b.out.shape[-1]), at[-1]), i64)
    )


RULES: dict[str, Rule] = {
    "aten.full.default": full, "aten.full_like.default": full, "aten.new_full.default": new_full,
    "aten.fill.Scalar": fill, "aten.fill.Tensor": fill, "aten.scalar_tensor.default": scalar_tensor,
    **dict.fromkeys(("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"), constant_rule(1)),
    **dict.fromkeys(
        ("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.empty.memory_format",
         "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default",
         "aten.new_empty_strided.default", "aten.empty_permuted.default", "aten._efficientzerotensor.default",
         "aten._new_zeros_with_same_feature_meta.default"),
        constant_rule(0)),
    "aten.arange.default": arange_to, "aten.arange.start": arange, "aten.arange.start_step": arange,
    "aten.linspace.default": linspace, "aten.eye.default": eye, "aten.eye.m": eye, "aten.one_hot.default": one_hot,
}  # fmt: skip
