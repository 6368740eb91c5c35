"""Scalar meaning against Python's and torch's own answers, special values included."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from compiler.interpret import scalar
from compiler.ir import dtype as dt
from compiler.ir.expr import COMBINE, OPS

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 7.25, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38]
TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "rsqrt": torch.rsqrt, "exp2": torch.exp2, "erf": torch.erf, "erfc": torch.erfc, "round": torch.round,
    "sign": torch.sign, "trunc": torch.trunc, "log1p": torch.log1p, "tanh": torch.tanh, "acosh": torch.acosh,
}  # fmt: skip
TORCH2: dict[str, Callable[..., torch.Tensor]] = {
    "mod": torch.remainder, "rem": torch.fmod, "floordiv": torch.floor_divide, "min": torch.minimum,
    "max": torch.maximum, "pow": torch.pow, "atan2": torch.atan2,
}  # fmt: skip
INTEGERS = {"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8}


def test_every_row_has_a_function() -> None:
    assert set(scalar.FUNCTIONS) == set(OPS)


def _same(ours: np.ndarray, theirs: np.ndarray, rtol: float) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-44)
    zero = (ours == 0) & (theirs == 0)
    assert (np.signbit(ours) == np.signbit(theirs))[zero].all()


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_functions_of_one_argument(name: str, kind: type[Any]) -> None:
    x = np.array(SPECIAL, kind)
    ours = scalar.apply(name, (x,))
    assert ours.dtype == kind
    _same(ours, TORCH[name](torch.from_numpy(x)).numpy(), 1e-6 if kind is np.float32 else 1e-15)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_tf32_keeps_ten_bits_of_the_fraction(kind: type[Any]) -> None:
    unit = 2.0**-10
    x = np.array([1.0, 1 + unit / 2, -1 - unit / 2, 1 + unit / 2 - 2.0**-20, 2 - 2.0**-20, 3e38, np.inf, np.nan], kind)
    wanted = np.array([1.0, 1 + unit, -1 - unit, 1.0, 2.0, np.inf, np.inf, np.nan], kind)
    wanted[5] = scalar.apply("tf32", (x[5:6],))[0]
    np.testing.assert_array_equal(scalar.apply("tf32", (x,)), wanted)
    assert abs(wanted[5] / kind(3e38) - 1) < unit


@pytest.mark.parametrize("name", TORCH2)
def test_a_number_for_all_is_that_number_for_each(name: str) -> None:
    """NumPy has other code for a whole array and one number; its powers of 0.5 differ at -inf and -0."""
    x = np.array(SPECIAL)
    for number in SPECIAL:
        shared, spread = (scalar.apply(name, (x, np.full(n, number))) for n in (1, len(x)))
        _same(shared, spread, 1e-15)


@pytest.mark.parametrize("name", TORCH2)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_functions_of_two_arguments(name: str, kind: type[Any]) -> None:
    a, b = (x.ravel() for x in np.meshgrid(np.array(SPECIAL, kind), np.array(SPECIAL, kind)))
    theirs = TORCH2[name](torch.from_numpy(a.copy()), torch.from_numpy(b.copy())).numpy()
    ours = scalar.apply(name, (a, b))
    # torch's vectorised f32 fmod overflows inside, and gives NaN, where the quotient is huge
    usual = ~(np.isfinite(a) & (np.abs(a) * 1e-30 > np.abs(b))) | (b == 0) | (name in ("pow", "atan2", "min", "max"))
    _same(ours[usual], theirs[usual], 1e-6 if kind is np.float32 else 1e-14)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_and_never_trap(name: str) -> None:
    dtype = dt.DTYPES[name]
    low, high = dt.integer_range(dtype)
    kind = scalar.storage(dtype)
    edge = np.array([low, low + 1, 0, 1, 5, high - 1, high], kind)
    a, b = (x.ravel() for x in np.meshgrid(edge, edge))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meanings: dict[str, Callable[[int, int], int]] = {
            "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
            "floordiv": lambda x, y: x // y if y else 0, "mod": lambda x, y: x % y if y else 0,
            "truncdiv": lambda x, y: (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1) if y else 0,
            "rem": lambda x, y: (abs(x) % abs(y)) * (-1 if x < 0 else 1) if y else 0,
        }  # fmt: skip
        for op, exact in meanings.items():
            got = scalar.apply(op, (a, b))
            want = [(exact(int(x), int(y)) - low) % (high - low + 1) + low for x, y in zip(a, b, strict=True)]
            assert got.dtype == kind
            assert got.tolist() == want, op


@pytest.mark.parametrize("name", INTEGERS)
def test_float_to_integer_is_torch_on_x86(name: str) -> None:
    x = np.array([0.9, -0.9, 100.5, -7.0, 300.0, -1.0, 3e9, -3e9, 1e20, math.nan, math.inf, -math.inf] * 3, np.float32)
    if name == "u8":
        x = x[np.abs(x) < 2**31]
    ours = scalar.cast(x, dt.f32, dt.DTYPES[name])
    assert ours.tolist() == torch.from_numpy(x).to(INTEGERS[name]).tolist()


def test_sixteen_bit_casts_round_to_even_as_torch() -> None:
    seed = np.random.SeedSequence().entropy
    bits = np.random.default_rng(seed).integers(0, 2**32, 20000, dtype=np.uint32)
    ties = 1 + np.arange(64, dtype=np.float32) / 512
    x = np.concatenate([bits.view(np.float32), np.array(SPECIAL, np.float32), ties])
    for dtype, kind in ((dt.bf16, torch.bfloat16), (dt.f16, torch.float16)):
        ours = scalar.cast(x, dt.f32, dtype)
        theirs = torch.from_numpy(x).to(kind).float().numpy()
        np.testing.assert_array_equal(ours.astype(np.float32), theirs, err_msg=f"seed {seed}")
    there_and_back = scalar.from_memory(scalar.to_memory(x, dt.bf16), dt.bf16)
    np.testing.assert_array_equal(there_and_back, scalar.round_bf16(x), err_msg=f"seed {seed}")
    assert scalar.cast(np.asarray(1.00390625, np.float32), dt.f32, dt.bf16).shape == ()


def test_exact_never_rounds() -> None:
    x = np.array([1 + 2.0**-40])
    assert scalar.cast(x, dt.f64, dt.bf16, exact=True)[0] == x[0]
    assert scalar.constant(0.1, dt.f32, exact=True).dtype == np.float64


def test_fma_rounds_once() -> None:
    for kind, tiny in ((np.float32, 2.0**-20), (np.float64, 2.0**-40)):
        a: np.ndarray[Any, Any] = np.array([1 + tiny], kind)
        got = scalar.apply("fma", (a, a, -(a * a)))
        assert got.dtype == kind and float(got[0]) == tiny**2


def test_bool_and_cast_to_bool() -> None:
    x = np.array([0.0, -0.0, math.nan, 0.3], np.float32)
    assert scalar.cast(x, dt.f32, dt.boolean).tolist() == [False, False, True, True]
    flags = np.array([True, False])
    assert scalar.apply("not", (flags,)).tolist() == [False, True]
    assert scalar.reduce("and", flags, (0,), dt.boolean).dtype == np.bool_


@pytest.mark.parametrize("name", COMBINE)
@pytest.mark.parametrize("dtype", ["f32", "i64", "i8", "u8", "bool"])
def test_reductions_keep_their_type_and_have_an_identity(name: str, dtype: str) -> None:
    kind = dt.DTYPES[dtype]
    if (dtype == "f32" and name in ("and", "or")) or (dtype == "bool" and name in ("sum", "prod")):
        return
    if dtype == "u8" and name == "and":
        return
    empty = scalar.reduce(name, np.zeros((3, 0), scalar.storage(kind)), (1,), kind)
    assert empty.shape == (3,) and empty.dtype == scalar.storage(kind)
    x = np.array([[1, 0, 1], [1, 1, 1]]).astype(scalar.storage(kind))
    both = scalar.accumulate(name, x, 1)
    assert both.dtype == x.dtype and np.array_equal(both[:, -1], scalar.reduce(name, x, (1,), kind))


def test_scatter_in_order() -> None:
    target, at = np.zeros(3, np.float32), (np.array([1, 1, 2]),)
    scalar.combine_at("set", target, at, np.array([5, 6, 7], np.float32))
    assert target.tolist() == [0, 6, 7]
    scalar.combine_at("sum", target, at, np.array([1, 1, 1], np.float32))
    assert target.tolist() == [0, 8, 8]
