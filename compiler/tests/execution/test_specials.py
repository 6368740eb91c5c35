"""Every function of one and of two numbers where zeros, infinities, NaN and the ends of the range meet, compiled.

Results are held to eager's by class: NaN, and an infinity or a number with its sign, that of zero included. Eager is
asked for one element at a time, which it computes as the C library does; its vectors differ from that in places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.tests.called import called
from compiler.tests.eager import expressions

FEW = 7  # elements that no vector has
TYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NEGATIVE_NAN = {"f64": -1 << 51, "f32": -1 << 22, "bf16": -1 << 6, "f16": -1 << 9}  # as bits
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}

OF_ONE = """
    x.abs()
    -x
    x.sign()
    x.square()
    x.reciprocal()
    x.sqrt()
    x.rsqrt()
    x.exp()
    x.exp2()
    x.expm1()
    x.log()
    x.log2()
    x.log10()
    x.log1p()
    x.sin()
    x.cos()
    x.tan()
    x.asin()
    x.acos()
    x.atan()
    x.sinh()
    x.cosh()
    x.tanh()
    x.asinh()
    x.acosh()
    x.atanh()
    x.erf()
    x.erfc()
    x.ceil()
    x.floor()
    x.trunc()
    x.round()
    x.frac()
    x.sigmoid()
    x.relu()
    x.isnan()
    x.isinf()
    x.isfinite()
    x.isposinf()
    x.isneginf()
    x.signbit()
    x.signbit().logical_not()
    x.nan_to_num()
    x.logit(0.2)
    F.silu(x)
    F.mish(x)
    F.selu(x)
    F.elu(x, 0.3)
    F.hardswish(x)
    F.hardsigmoid(x)
    F.leaky_relu(x)
    F.hardshrink(x)
    F.softshrink(x)
    F.softplus(x)
    F.softsign(x)
    F.logsigmoid(x)
    F.gelu(x)
    F.gelu(x, approximate="tanh")
    x ** 2
    x ** 3
    x ** -1
    x ** 2.5
    2.0 ** x
    x * 0.0
    x / inf
    torch.remainder(x, -inf)
    torch.fmod(x, 0.0)
    x // 3
"""
OF_TWO = """
    a + b
    a - b
    a * b
    a / b
    torch.fmod(a, b)
    torch.remainder(a, b)
    torch.atan2(a, b)
    torch.hypot(a, b)
    torch.logaddexp(a, b)
    torch.xlogy(a, b)
    torch.heaviside(a, b)
    torch.pow(a, b)
    a < b
    a <= b
    a > b
    a >= b
    a == b
    a != b
    torch.logical_and(a, b)
    torch.logical_xor(a, b)
    torch.isclose(a, b)
    torch.isclose(a, b, equal_nan=True)
    torch.where(a > b, a, b)
    torch.where(a.isnan(), b, a)
    torch.maximum(a, b) + 0
    torch.minimum(a, b) + 0
    torch.fmax(a, b) + 0
    torch.fmin(a, b) + 0
    torch.clamp(a, min=b) + 0
    torch.clamp(a, -b, b) + 0
"""


def specials(dtype: str) -> torch.Tensor:
    kind = TYPES[dtype]
    info = torch.finfo(kind)
    sizes = [0.0, info.smallest_normal / 4, info.smallest_normal, 0.5, 1.0, 2.5, info.max / 4, math.inf]
    bits = torch.tensor([NEGATIVE_NAN[dtype]], dtype=INTEGERS[kind.itemsize])
    x = torch.tensor(sizes, dtype=torch.float64).to(kind)
    return torch.cat([x, -x, torch.tensor([math.nan], dtype=kind), bits.view(kind)])


def program(table: str, names: str) -> tuple[list[str], Callable[..., Any]]:
    """The lines of a table as one function of several results."""
    lines = expressions(table)
    return lines, eval(f"lambda {names}: ({', '.join(lines)},)", {"torch": torch, "F": F, "inf": math.inf})


def classes(x: torch.Tensor) -> torch.Tensor:
    """3 for NaN, 2 for infinities and 1 for numbers, with their signs; what is no float as it is."""
    if not x.is_floating_point():
        return x
    kind = torch.where(x.isinf(), 2.0, 1.0).copysign(x.double())
    return torch.where(x.isnan(), 3.0, kind)


def one_by_one(function: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    made = [function(*(x[i : i + 1] for x in given)) for i in range(given[0].numel())]
    return [torch.cat(column) for column in zip(*made, strict=True)]


def few_at_a_time(function: Callable[..., Any], given: list[torch.Tensor], target: str) -> list[torch.Tensor]:
    """By code for so few elements that each is computed by itself."""
    left = -given[0].numel() % FEW
    padded = [torch.cat([x, x[:left]]) for x in given]
    compiled = compiler.compile(function, [x[:FEW] for x in padded], compiler.target(target))
    made = [compiled(*(x[i : i + FEW] for x in padded)) for i in range(0, padded[0].numel(), FEW)]
    return [torch.cat(column)[: given[0].numel()] for column in zip(*made, strict=True)]


def check(lines: list[str], got: Any, want: list[torch.Tensor], given: list[torch.Tensor], how: str) -> None:
    wrong = []
    for line, ours, theirs in zip(lines, got, want, strict=True):
        assert ours.dtype is theirs.dtype, line
        for i in (classes(ours) != classes(theirs)).nonzero().flatten().tolist():
            at = ", ".join(f"{float(x[i]):g}" for x in given)
            wrong.append(f"{line} of {at} is {ours[i].item():g}, in eager {theirs[i].item():g}")
    assert not wrong, f"{how}: {len(wrong)} differ\n" + "\n".join(wrong[:40])


# 16-bit floats are computed with as f32.
WHERE = [("f64", "cpu"), ("f32", "cpu"), ("bf16", "cpu"), ("f16", "cpu"), ("f64", "sm_90a"), ("f32", "sm_90a")]


def compare(table: str, names: str, given: list[torch.Tensor], target: str) -> None:
    lines, function = program(table, names)
    want = one_by_one(function, given)
    check(lines, called(function, given, target), want, given, "by vectors")
    if target == "cpu" and given[0].itemsize > 2:
        check(lines, few_at_a_time(function, given, target), want, given, "one by one")


@pytest.mark.parametrize(("dtype", "target"), WHERE)
def test_of_one_number(dtype: str, target: str) -> None:
    compare(OF_ONE, "x", [specials(dtype)], target)


@pytest.mark.parametrize(("dtype", "target"), WHERE)
def test_of_two_numbers(dtype: str, target: str) -> None:
    x = specials(dtype)
    compare(OF_TWO, "a, b", [x.repeat_interleave(x.numel()), x.repeat(x.numel())], target)
