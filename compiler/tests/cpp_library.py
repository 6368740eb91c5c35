"""Builds small C++ libraries on the device headers for the tests, and feeds them data that reaches every edge."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from compiler.runtime.build import kernel_flags

Array = npt.NDArray[Any]

HEADERS = Path(__file__).parents[1] / "render" / "cpp"
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Werror"]
# This machine, one with AVX2 and FMA, and the x86-64 baseline, which takes the code without special instructions.
MACHINES = ("native", "x86-64-v3", "x86-64")
CPP = {"f32": "float", "f64": "double", "i64": "long", "i32": "int", "i16": "short", "i8": "signed char"}
CPP |= {"u8": "unsigned char", "bf16": "mlc_bf16", "f16": "mlc_f16", "bool": "bool"}
NUMPY: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i16": np.int16}
NUMPY |= {"i8": np.int8, "u8": np.uint8, "bool": np.bool_, "bf16": np.uint16, "f16": np.float16}


def runs_here(machine: str) -> bool:
    """Whether this processor can run code built for `machine`."""
    return machine != "x86-64-v3" or " avx2 " in Path("/proc/cpuinfo").read_text()


def text(pattern: str, **words: str) -> str:
    for word, replacement in words.items():
        pattern = pattern.replace(word, replacement)
    return pattern


def build(folder: Path, headers: list[str], body: str, machine: str, *more: str) -> ctypes.CDLL:
    """Compile `body` after `headers`, with `more` flags, and load it."""
    if not runs_here(machine):
        pytest.skip(f"this processor cannot run {machine}")
    source, library = folder / "functions.cpp", folder / "functions.so"
    source.write_text("".join(f'#include "{HEADERS}/{name}"\n' for name in headers) + body)
    # As kernels are built, but for -O3, which takes twice as long and is for their loops.
    flags = kernel_flags(optimise="-O2", machine=machine)
    command = ["g++", *WARNINGS, str(source), "-o", str(library), *flags, *more, "-fvisibility=default"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def call(function: Any, *arguments: Array | int) -> None:
    function(*(a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else ctypes.c_long(a) for a in arguments))


def stored(x: Array) -> Array:
    """The numbers as bf16, in the bits of u16."""
    held: Array = torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().view(torch.uint16).numpy()
    return held


def seeded() -> tuple[int, np.random.Generator]:
    """A fresh seed, to be printed by a failure, and its generator."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    return seed, np.random.default_rng(seed)


def floats(dtype: str, rng: np.random.Generator, count: int = 16_000) -> Array:
    """Random bit patterns, ordinary magnitudes, and every kind of edge."""
    kind = NUMPY[dtype]
    bits = rng.integers(0, 256, count * np.dtype(kind).itemsize, dtype=np.uint8).view(kind)
    info = np.finfo(kind)
    edges = [0.0, 1.0, 0.5, 2.0, 3.0, 10.0, np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal, info.eps]
    edges += [88.72283, 88.72284, 103.97, 104.0, 709.782, 745.13, 127.99999, 128.0, 149.0, 150.0, 1e5, 1e10, 2.0**31]
    with np.errstate(over="ignore"):
        edge = np.array(edges, np.float64).astype(kind)
        near = np.array([np.nextafter(kind(e), kind(d)) for e in edges for d in (-np.inf, np.inf)], kind)
    edge = np.concatenate([edge, near, info.tiny * rng.random(50).astype(kind)])
    ordinary = [rng.uniform(-s, s, count // 4).astype(kind) for s in (1e-3, 1, 10, 120)]
    return np.concatenate([bits, *ordinary, edge, -edge])


def integers(dtype: str, rng: np.random.Generator, count: int = 12_000) -> Array:
    """Random integers of all magnitudes, and the ends of the range."""
    kind = NUMPY[dtype]
    info = np.iinfo(kind)
    wide = rng.integers(info.min, info.max, count, dtype=kind, endpoint=True)
    small = (rng.integers(-9, 10, count) if info.min else rng.integers(0, 10, count)).astype(kind)
    edges = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, info.max // 2], kind)
    return np.concatenate([wide, small, wide >> rng.integers(0, info.bits - 1, count, dtype=kind), edges])


def pairs(values: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Every number against a random other one, every edge (the last of `values`) against every edge."""
    edges = values[-60:]
    left = np.concatenate([values, np.repeat(edges, edges.size)])
    return left, np.concatenate([rng.permutation(values), np.tile(edges, edges.size)])


def ulps(got: Array, exact: Array) -> Array:
    """Errors in ulps of got's dtype; infinite where the class (NaN, infinity, sign of zero) is wrong."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        exponent = np.maximum(np.frexp(exact)[1] - 1, info.minexp)
        error = np.abs(got.astype(np.longdouble) - exact) / np.ldexp(np.longdouble(1), exponent - info.nmant)
    same = (rounded == got) & (np.signbit(rounded) == np.signbit(got)) | np.isnan(rounded) & np.isnan(got)
    # Where rounding the exact result overflows, the largest number is one ulp away, and the other way round.
    limit = np.isfinite(got) & (np.abs(got) == info.max) & np.isinf(rounded)
    limit |= np.isinf(got) & (np.abs(rounded) == info.max)
    limit &= np.signbit(got) == np.signbit(rounded)
    finite = np.isfinite(got) & np.isfinite(rounded)
    zeros = (got == 0) & (rounded == 0)
    return np.where(
        same, np.where(finite, np.minimum(error, 0.5), 0), np.where(finite & ~zeros, error, np.where(limit, 1, np.inf))
    )
