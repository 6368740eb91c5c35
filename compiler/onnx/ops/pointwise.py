"""Ops of one element at a time, their operands broadcast as NumPy does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.onnx import model as models
from compiler.onnx.ops.row import Row, plain, row


def _div(a: Tensor, b: Tensor) -> Tensor:
    """Of integers the quotient towards zero, as C has it."""
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    """The remainder with the sign of the divisor; with `fmod` that of the dividend."""
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def _pow(a: Tensor, b: Tensor) -> Tensor:
    """In the type of the base."""
    if a.dtype == b.dtype:
        return torch.pow(a, b)
    wide = a if a.is_floating_point() or not b.is_floating_point() else a.to(b.dtype)
    return torch.pow(wide, b.to(wide.dtype)).to(a.dtype)


def _shift(a: Tensor, b: Tensor, *, direction: str) -> Tensor:
    return torch.bitwise_left_shift(a, b) if direction == "LEFT" else torch.bitwise_right_shift(a, b)


def _cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return x.to(models.dtype(to))


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Where the ends cross, the upper one."""
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _reduced(how: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *xs: functools.reduce(how, xs)


def _mean(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.add, xs) / len(xs)


def _is_inf(x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    wanted = -float("inf") if detect_negative else float("inf")
    return x == wanted if detect_negative or detect_positive else torch.zeros_like(x, dtype=torch.bool)


def _gelu(x: Tensor, *, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def _leaky_relu(x: Tensor, *, alpha: float) -> Tensor:
    return F.leaky_relu(x, alpha)


def _elu(x: Tensor, *, alpha: float) -> Tensor:
    return F.elu(x, alpha)


def _celu(x: Tensor, *, alpha: float) -> Tensor:
    return F.celu(x, alpha)


def _selu(x: Tensor, *, alpha: float, gamma: float) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def _hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


def _thresholded(x: Tensor, *, alpha: float) -> Tensor:
    return torch.where(x > alpha, x, 0)


def _shrink(x: Tensor, *, bias: float, lambd: float) -> Tensor:
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0)).to(x.dtype)


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


def _cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return x.to(like.dtype)


def _identity(x: Any) -> Any:
    return x


ROWS: dict[str, Row] = plain({
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Add": torch.add, "And": torch.logical_and,
    "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh,
    "BitwiseAnd": torch.bitwise_and, "BitwiseNot": torch.bitwise_not, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh, "Div": _div,
    "Equal": torch.eq, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "HardSwish": F.hardswish, "Identity": _identity, "IsNaN": torch.isnan,
    "Less": torch.lt, "LessOrEqual": torch.le, "Log": torch.log, "Max": _reduced(torch.maximum), "Mean": _mean,
    "Min": _reduced(torch.minimum), "Mish": F.mish, "Mul": torch.mul, "Neg": torch.neg, "Not": torch.logical_not,
    "Or": torch.logical_or, "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x), "Pow": _pow,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": lambda x: F.softplus(x),
    "Softsign": lambda x: x / (1 + torch.abs(x)), "Sqrt": torch.sqrt, "Sub": torch.sub,
    "Sum": _reduced(torch.add), "Tan": torch.tan, "Tanh": torch.tanh, "Where": _where, "Xor": torch.logical_xor,
}) | {
    "BitShift": row(_shift), "Cast": row(_cast), "CastLike": row(_cast_like), "Celu": row(_celu),
    "Clip": row(_clip), "Elu": row(_elu), "Gelu": row(_gelu),
    "HardSigmoid": row(_hard_sigmoid), "IsInf": row(_is_inf), "LeakyRelu": row(_leaky_relu), "Mod": row(_mod),
    "Selu": row(_selu), "Shrink": row(_shrink), "ThresholdedRelu": row(_thresholded),
}  # fmt: skip
