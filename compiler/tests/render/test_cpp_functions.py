"""The C++ device functions for several instruction sets: errors within the claims, edges by class, tails as bodies."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.ir.functions import FUNCTIONS
from compiler.render import c, cpp
from compiler.targets import accuracy
from compiler.tests.cpp_library import (
    CPP,
    HEADERS,
    MACHINES,
    Array,
    build,
    call,
    floats,
    integers,
    pairs,
    seeded,
    text,
    ulps,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

Reference = Callable[..., Array]


HEADER = {name: header for header, names in cpp.HEADERS.items() for name in names.split()}

# The exact value in wider arithmetic; None: the C library's long double function, called from the built library.
UNARY: dict[str, Reference | None] = {
    "exp": np.exp, "exp2": np.exp2,
    "exp2_ftz": lambda x: np.where(x < (-126 if x.dtype == np.float64 else -1022), 0, np.exp2(x)),
    "expm1": np.expm1, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "erf": None, "erfc": None, "lgamma": None,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "abs": np.abs, "neg": np.negative,
    "sign": lambda x: (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype),
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
}  # fmt: skip


def _remainder(x: Array, y: Array) -> Array:
    r = np.fmod(x, y)
    return np.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)


def _floordiv(x: Array, y: Array) -> Array:
    return torch.div(torch.from_numpy(x), torch.from_numpy(y), rounding_mode="floor").numpy()


BINARY: dict[str, Reference] = {"pow": np.power, "atan2": np.arctan2}
# Functions whose result in the dtype itself is fully defined.
EXACT: dict[str, Reference] = {
    "fmod": np.fmod, "remainder": _remainder, "floordiv": _floordiv, "truncdiv": lambda x, y: np.trunc(x / y),
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip

APPLY = """
extern "C" void NAME_DTYPE(PARAMETERS LANE* vectors, LANE* scalars, long count) {
  constexpr int N = MLC_VECTOR_BYTES / sizeof(LANE);
  for (long i = 0; i + N <= count; i += N) mlc_store(vectors + i, mlc_NAME(VECTORS));
  for (long i = count / N * N; i < count; i++) vectors[i] = mlc_NAME(SCALARS);
  for (long i = 0; i < count; i++) scalars[i] = mlc_NAME(SCALARS);
}
"""
REFERENCE = """
extern "C" void reference_NAME(const long double* x, long double* y, long count) {
  for (long i = 0; i < count; i++) y[i] = __builtin_NAMEl(x[i]);
}
"""


def function_text(name: str, dtype: str, arity: int) -> str:
    inputs = "xy"[:arity]
    return text(
        APPLY, PARAMETERS="".join(f"const LANE* {i}, " for i in inputs),
        VECTORS=", ".join(f"mlc_load<LANE, N>({i} + i)" for i in inputs), SCALARS=", ".join(f"{i}[i]" for i in inputs),
        NAME=name, DTYPE=dtype, LANE=CPP[dtype],
    )  # fmt: skip


def check(name: str, dtype: str, where: str, inputs: tuple[Array, ...], vectors: Array, exact: Array) -> None:
    error = ulps(vectors, exact)
    worst, claim = int(error.argmax()), accuracy.max_ulp(name, dtype)
    assert error[worst] <= claim, (
        f"{name} {dtype} {where}: {error[worst]} ulp > {claim} at {[x[worst] for x in inputs]!r}: "
        f"{vectors[worst]!r} instead of {exact[worst]!r}"
    )


def check_same(name: str, where: str, inputs: tuple[Array, ...], vectors: Array, scalars: Array) -> None:
    both_nan = (vectors != vectors) & (scalars != scalars)
    different = np.flatnonzero((vectors != scalars) & ~both_nan)
    if different.size:
        pytest.fail(f"{name} {where}: a vector lane differs from the scalar at {[x[different[0]] for x in inputs]!r}")


def wide(x: Array) -> Array:
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("header", sorted({HEADER[name] for name in UNARY}))
def test_functions_of_one_number_keep_their_claims(header: str, machine: str, tmp_path: Path) -> None:
    names = [name for name in UNARY if HEADER[name] == header]
    body = "".join(function_text(name, dtype, 1) for name in names for dtype in ("f32", "f64"))
    body += "".join(text(REFERENCE, NAME=name) for name in names if UNARY[name] is None)
    library = build(tmp_path, [header, "memory.h"], body, machine)
    seed, rng = seeded()
    for dtype in ("f32", "f64"):
        x = floats(dtype, rng)
        for name in names:
            vectors, scalars, exact = np.empty_like(x), np.empty_like(x), np.empty(x.size, np.longdouble)
            call(library[f"{name}_{dtype}"], x, vectors, scalars, x.size)
            with np.errstate(all="ignore"):
                if reference := UNARY[name]:
                    exact = reference(wide(x))
                else:
                    call(library[f"reference_{name}"], x.astype(np.longdouble), exact, x.size)
            check(name, dtype, f"{machine} seed {seed}", (x,), vectors, exact)
            check_same(name, f"{dtype} {machine} seed {seed}", (x,), vectors, scalars)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("header", sorted({HEADER[name] for name in BINARY | EXACT}))
def test_functions_of_two_numbers_keep_their_claims(header: str, machine: str, tmp_path: Path) -> None:
    names = [name for name in BINARY | EXACT if HEADER[name] == header]
    body = "".join(function_text(name, dtype, 2) for name in names for dtype in ("f32", "f64"))
    library = build(tmp_path, [header, "memory.h"], body, machine)
    seed, rng = seeded()
    for dtype in ("f32", "f64"):
        x, y = pairs(floats(dtype, rng, 8000), rng)
        for name in names:
            vectors, scalars = np.empty_like(x), np.empty_like(x)
            call(library[f"{name}_{dtype}"], x, y, vectors, scalars, x.size)
            with np.errstate(all="ignore"):
                exact = EXACT[name](x, y) if name in EXACT else BINARY[name](wide(x), wide(y))
                if name in ("min", "max"):  # of two zeros either may be taken
                    vectors, scalars, exact = vectors + 0, scalars + 0, exact + 0
            check(name, dtype, f"{machine} seed {seed}", (x, y), vectors, exact)
            check_same(name, f"{dtype} {machine} seed {seed}", (x, y), vectors, scalars)


def _truncdiv(x: Array, y: Array) -> Array:
    down = np.floor_divide(x, y)
    return np.asarray(down + ((np.fmod(x, y) != 0) & ((x < 0) != (y < 0)))).astype(x.dtype)


def _shl(x: Array, y: Array) -> Array:
    inside = (y >= 0) & (y < 8 * x.itemsize)
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0)


def _shr(x: Array, y: Array) -> Array:
    inside = (y >= 0) & (y < 8 * x.itemsize)
    return np.where(inside, np.right_shift(x, np.where(inside, y, 0)), np.where(x < 0, -1, 0).astype(x.dtype))


# Integers wrap, and NumPy's x // 0 and x % 0 are 0 as ours are.
INTEGER: dict[str, tuple[int, Reference]] = {
    "floordiv": (2, np.floor_divide), "remainder": (2, np.remainder), "truncdiv": (2, _truncdiv), "fmod": (2, np.fmod),
    "gcd": (2, np.gcd), "shl": (2, _shl), "shr": (2, _shr), "min": (2, np.minimum), "max": (2, np.maximum),
    "neg": (1, np.negative), "abs": (1, np.abs), "sign": (1, np.sign),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_integer_functions_are_exact_and_never_trap(machine: str, tmp_path: Path) -> None:
    dtypes = ("i8", "u8", "i16", "i32", "i64")
    body = "".join(function_text(name, dtype, arity) for name, (arity, _) in INTEGER.items() for dtype in dtypes)
    library = build(tmp_path, ["arithmetic.h", "division.h", "memory.h"], body, machine)
    seed, rng = seeded()
    for dtype in dtypes:
        left, right = pairs(integers(dtype, rng, 3000), rng)
        for name, (arity, reference) in INTEGER.items():
            inputs = (left, right)[:arity]
            vectors, scalars = np.empty_like(left), np.empty_like(left)
            call(library[f"{name}_{dtype}"], *inputs, vectors, scalars, left.size)
            with np.errstate(all="ignore"):
                exact = reference(*inputs)
            wrong = np.flatnonzero(vectors != exact)
            if wrong.size:
                at = wrong[0]
                found = f"{[x[at] for x in inputs]!r}: {vectors[at]!r} instead of {exact[at]!r}"
                pytest.fail(f"{name} {dtype} {machine} seed {seed}: {found}")
            check_same(name, f"{dtype} {machine} seed {seed}", inputs, vectors, scalars)


def test_every_function_has_a_header_and_every_claim_a_function() -> None:
    assert set(FUNCTIONS) <= set(c.FUNCTIONS)
    for function in c.FUNCTIONS.values():
        header = HEADER[function.removeprefix("mlc_")]
        assert re.search(rf"\b{function}\b", (HEADERS / header).read_text()), f"{header} has no {function}"
