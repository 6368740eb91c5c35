"""The C++ device functions, built with g++ for several instruction sets, against wider NumPy arithmetic and PyTorch."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.targets import accuracy

HEADERS = Path(__file__).parents[1] / "render" / "cpp"
FLAGS = ["-O2", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Werror"]
# Native, a machine with AVX2 and FMA, and the x86-64 baseline, which takes the code without special instructions.
MACHINES = ("native", "x86-64-v3", "x86-64")
CPP = {"f32": "float", "f64": "double", "i64": "long", "i32": "int", "i16": "short", "i8": "signed char"}
CPP |= {"u8": "unsigned char", "bf16": "mlc_bf16", "f16": "mlc_f16", "bool": "bool"}
NUMPY = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8}
NUMPY |= {"u8": np.uint8, "bool": np.bool_, "bf16": np.uint16, "f16": np.float16}
TORCH = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16}
TORCH |= {"i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "bf16": torch.bfloat16, "f16": torch.float16}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def runs_here(machine: str) -> bool:
    """Whether this processor can run code built for `machine`."""
    return machine != "x86-64-v3" or " avx2 " in Path("/proc/cpuinfo").read_text()


def build(folder: Path, headers: list[str], body: str, machine: str) -> ctypes.CDLL:
    """Compile `body` after `headers` and load it."""
    if not runs_here(machine):
        pytest.skip(f"this processor cannot run {machine}")
    source, library = folder / "functions.cpp", folder / "functions.so"
    source.write_text("".join(f'#include "{HEADERS}/{name}"\n' for name in headers) + body)
    command = ["g++", *FLAGS, *WARNINGS, f"-march={machine}", str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def call(function: Callable[..., None], *arguments: np.ndarray | int) -> None:
    function(*(a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else ctypes.c_long(a) for a in arguments))


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in ulps of got's dtype; infinite where the class (NaN, infinity, sign of zero) is wrong."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        exponent = np.maximum(np.frexp(exact)[1] - 1, info.minexp)
        error = np.abs(got.astype(np.longdouble) - exact) / np.ldexp(np.longdouble(1), exponent - info.nmant)
    limit = np.isinf(rounded) & np.isfinite(got) & (np.abs(got) == info.max) & (np.sign(got) == np.sign(rounded))
    same = (rounded == got) & (np.signbit(rounded) == np.signbit(got)) | np.isnan(rounded) & np.isnan(got)
    wrong = np.isnan(rounded) != np.isnan(got)
    wrong |= np.isinf(got) & (np.abs(rounded) < info.max)
    wrong |= (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(rounded))
    wrong |= np.isinf(rounded) & ~limit & ~same
    ordinary = np.isfinite(got) & np.isfinite(exact)
    return np.where(
        wrong, np.inf, np.where(ordinary & ~same, error, np.where(same & ordinary, np.minimum(error, 0.5), 0))
    )


def numbers(dtype: str, rng: np.random.Generator, count: int = 24_000) -> np.ndarray:
    """Random bit patterns, ordinary magnitudes, and every kind of edge."""
    kind = NUMPY[dtype]
    bits = rng.integers(0, 256, count * kind(0).itemsize, dtype=np.uint8).view(kind)
    info = np.finfo(kind)
    edges = [0.0, 1.0, 0.5, 2.0, 3.0, 10.0, np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal, info.eps]
    edges += [88.72283, 88.72284, 103.97, 104.0, 709.782, 745.13, 127.99999, 128.0, 149.0, 150.0, 1e5, 1e10, 2.0**31]
    with np.errstate(over="ignore"):
        near = np.array([np.nextafter(kind(e), kind(d)) for e in edges for d in (-np.inf, np.inf)], kind)
    edge = np.concatenate([np.array(edges, kind), near, info.tiny * rng.random(50).astype(kind)])
    ordinary = [rng.uniform(-s, s, count // 4).astype(kind) for s in (1e-3, 1, 10, 120)]
    return np.concatenate([bits, *ordinary, edge, -edge])


def seeded() -> tuple[int, np.random.Generator]:
    seed = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]
    return seed, np.random.default_rng(seed)


# ---- one argument: header, exact value in wider arithmetic

Reference = Callable[[np.ndarray], np.ndarray]
UNARY: dict[str, tuple[str, Reference]] = {
    "exp": ("exponential.h", np.exp),
    "exp2": ("exponential.h", np.exp2),
    "expm1": ("exponential.h", np.expm1),
    "sinh": ("exponential.h", np.sinh),
    "cosh": ("exponential.h", np.cosh),
    "tanh": ("exponential.h", np.tanh),
    "log": ("logarithm.h", np.log),
    "log2": ("logarithm.h", np.log2),
    "log10": ("logarithm.h", np.log10),
    "log1p": ("logarithm.h", np.log1p),
    "asinh": ("logarithm.h", np.arcsinh),
    "acosh": ("logarithm.h", np.arccosh),
    "atanh": ("logarithm.h", np.arctanh),
    "sqrt": ("vector.h", np.sqrt),
    "rsqrt": ("arithmetic.h", lambda x: 1 / np.sqrt(x)),
    "abs": ("arithmetic.h", np.abs),
    "neg": ("arithmetic.h", np.negative),
    "sign": ("arithmetic.h", lambda x: (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)),
    "floor": ("arithmetic.h", np.floor),
    "ceil": ("arithmetic.h", np.ceil),
    "trunc": ("arithmetic.h", np.trunc),
    "round": ("arithmetic.h", np.rint),
}

UNARY_TEXT = """
extern "C" void NAME_DTYPE(const LANE* x, LANE* vectors, LANE* scalars, long count) {
  constexpr int N = MLC_VECTOR_BYTES / sizeof(LANE);
  for (long i = 0; i + N <= count; i += N) mlc_store(vectors + i, mlc_NAME(mlc_load<LANE, N>(x + i)));
  for (long i = count / N * N; i < count; i++) vectors[i] = mlc_NAME(x[i]);
  for (long i = 0; i < count; i++) scalars[i] = mlc_NAME(x[i]);
}
"""


def text(pattern: str, **words: str) -> str:
    for word, replacement in words.items():
        pattern = pattern.replace(word, replacement)
    return pattern


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("header", sorted({header for header, _ in UNARY.values()}))
def test_functions_of_one_argument_keep_their_claims(header: str, machine: str, tmp_path: Path) -> None:
    names = [name for name, (where, _) in UNARY.items() if where == header]
    cases = [(name, dtype) for name in names for dtype in ("f32", "f64")]
    body = "".join(text(UNARY_TEXT, NAME=name, DTYPE=dtype, LANE=CPP[dtype]) for name, dtype in cases)
    library = build(tmp_path, [header, "memory.h"], body, machine)
    seed, rng = seeded()
    for name, dtype in cases:
        x = numbers(dtype, rng)
        vectors, scalars = np.empty_like(x), np.empty_like(x)
        call(library[f"{name}_{dtype}"], x, vectors, scalars, x.size)
        with np.errstate(all="ignore"):
            exact = UNARY[name][1](x.astype(np.float64 if dtype == "f32" else np.longdouble))
        error = ulps(vectors, exact)
        worst, claim = int(error.argmax()), accuracy.max_ulp(name, dtype)
        assert error[worst] <= claim, (
            f"{name} {dtype} {machine} seed {seed}: {error[worst]} ulp > {claim} at x = {x[worst]!r}: "
            f"{vectors[worst]!r} instead of {exact[worst]!r}"
        )
        different = np.flatnonzero((vectors != scalars) & ~(np.isnan(vectors) & np.isnan(scalars)))
        assert different.size == 0, f"{name} {dtype} {machine} seed {seed}: vector != scalar at {x[different[0]]!r}"
