"""Elementwise ops, whose operands broadcast as in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.onnx import model as models
from compiler.onnx.ops.row import Row, row, rows_without_attributes

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def cast(x: Tensor, dtype: torch.dtype, saturate: int = 1) -> Tensor:
    """Convert the element type.

    A value out of range of an 8-bit float becomes the type's largest number or, without `saturate`, what IEEE 754
    prescribes: in e4m3, which has no infinities, NaN.
    """
    if dtype in FLOAT8 and x.dtype not in FLOAT8:
        x = x if x.is_floating_point() else x.float()
        largest = torch.finfo(dtype).max
        if saturate:
            x = x.clamp(-largest, largest)
        elif dtype is FLOAT8[0]:
            x = torch.where(x.abs() > largest + 16, torch.nan, x)  # half the distance to the next number
    return x.to(dtype)


def _div(a: Tensor, b: Tensor) -> Tensor:
    """Integer quotients are truncated, as in C."""
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    """The remainder with the sign of the divisor; with `fmod`, of the dividend."""
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def _pow(a: Tensor, b: Tensor) -> Tensor:
    """A power in the type of the base."""
    if a.dtype == b.dtype:
        return torch.pow(a, b)
    wide = a if a.is_floating_point() or not b.is_floating_point() else a.to(b.dtype)
    return torch.pow(wide, b.to(wide.dtype)).to(a.dtype)


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Clamp; if the bounds cross, the upper one wins."""
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *xs: functools.reduce(function, xs)


def _is_inf(x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    infinity = -float("inf") if detect_negative else float("inf")
    return x == infinity if detect_negative or detect_positive else torch.zeros_like(x, dtype=torch.bool)


ROWS: dict[str, Row] = rows_without_attributes({
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Add": torch.add, "And": torch.logical_and,
    "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh,
    "BitwiseAnd": torch.bitwise_and, "BitwiseNot": torch.bitwise_not, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh, "Div": _div,
    "Equal": torch.eq, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "HardSwish": F.hardswish, "Identity": lambda x: x, "IsNaN": torch.isnan,
    "Less": torch.lt, "LessOrEqual": torch.le, "Log": torch.log, "Max": _variadic(torch.maximum),
    "Mean": lambda *xs: functools.reduce(torch.add, xs) / len(xs), "Min": _variadic(torch.minimum), "Mish": F.mish,
    "Mul": torch.mul, "Neg": torch.neg, "Not": torch.logical_not, "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x), "Pow": _pow,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": lambda x: F.softplus(x),
    "Softsign": lambda x: x / (1 + torch.abs(x)), "Sqrt": torch.sqrt, "Sub": torch.sub,
    "Sum": _variadic(torch.add), "Tan": torch.tan, "Tanh": torch.tanh, "Where": lambda c, a, b: torch.where(c, a, b),
    "Xor": torch.logical_xor,
}) | {
    "BitShift": row(lambda a, b, *, direction: a << b if direction == "LEFT" else a >> b),
    "Cast": row(lambda x, *, to, saturate=1, round_mode="up": cast(x, models.dtype(to), saturate)),
    "CastLike": row(lambda x, like, *, saturate=1, round_mode="up": cast(x, like.dtype, saturate)),
    "Celu": row(lambda x, *, alpha: F.celu(x, alpha)), "Clip": row(_clip),
    "Elu": row(lambda x, *, alpha: F.elu(x, alpha)),
    "Gelu": row(lambda x, *, approximate: F.gelu(x, approximate=approximate)),
    "HardSigmoid": row(lambda x, *, alpha, beta: torch.clamp(alpha * x + beta, 0, 1)), "IsInf": row(_is_inf),
    "LeakyRelu": row(lambda x, *, alpha: F.leaky_relu(x, alpha)), "Mod": row(_mod),
    "Selu": row(lambda x, *, alpha, gamma: gamma * torch.where(x > 0, x, alpha * torch.expm1(x))),
    "Shrink": row(lambda x, *, bias, lambd:
                  torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0)).to(x.dtype)),
    "ThresholdedRelu": row(lambda x, *, alpha: torch.where(x > alpha, x, 0)),
}  # fmt: skip
