"""Trials of arithmetic with dedicated instructions or sequences on a GPU, and the construction of such kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from compiler.checks.instructions.tensor import kernel
from compiler.checks.instructions.trial import TYPES, Trial, to_stored
from compiler.interpret.scalar import Array, storage
from compiler.ir.dtype import DType, f32, i32, u8
from compiler.runtime.launches import Extent, Launch, Map

Memory = tuple[str, DType, Array]  # values as the interpreters represent them
NamedTrial = tuple[str, str, Trial]  # name, required feature of the target, trial
Trials = Iterator[NamedTrial]


def handwritten(name: str, needs: str, body: str, includes: tuple[str, ...], inputs: tuple[Memory, ...],
                outputs: tuple[Memory, ...], *, threads: int = 32, blocks: int = 1, cluster: Extent = (1, 1, 1),
                maps: tuple[Map, ...] = (), shared: int = 0,
                mbarriers: Mapping[str, int] = {}) -> NamedTrial:  # fmt: skip
    """A handwritten kernel. Its parameters are the inputs, the outputs, then the maps as m0, m1, ...; thread 0 first
    initialises `mbarriers`, each with its number of arrivals."""
    params = [
        *(f"const {TYPES[t.name]}* __restrict__ {x}" for x, t, _ in inputs),
        *(f"{TYPES[t.name]}* __restrict__ {x}" for x, t, _ in outputs),
        *(f"MLC_TENSOR_MAP(m{i})" for i in range(len(maps))),
    ]
    prologue = [f"MLC_SHARED(unsigned long, {x}, 1, 8);" for x in mbarriers]
    if mbarriers:
        initialisations = (f"    mlc_mbarrier_init({x}, {n});" for x, n in mbarriers.items())
        prologue += ["if (t == 0) {", *initialisations, "    mlc_mbarrier_fence_init();", "}"]
    text = kernel(name, threads, params, [*prologue, *body.strip("\n").splitlines()], cluster[0])
    arguments = (*range(len(inputs) + len(outputs)), *maps)
    launch = Launch(name, (blocks, 1, 1), (threads, 1, 1), arguments, shared=shared, cluster=cluster)
    return name, needs, Trial(text, includes, launch, tuple((x, to_stored(v, t)) for x, t, v in inputs), outputs)


def elementwise(
    name: str, header: str, call: str, inputs: tuple[Memory, ...], expected: Array, tolerance: Array | None = None
) -> NamedTrial:
    """A kernel that computes each element i by `call`, within a tolerance."""
    body = f"for (int i = t; i < {expected.size}; i += 64) out[i] = {call};"
    _, needs, trial = handwritten(name, "", body, (header,), inputs, (("out", f32, expected),), threads=64)
    return name, needs, trial if tolerance is None else replace(trial, tolerance=tolerance)


def small_integers(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], low: int = -8, high: int = 9
) -> Array:
    """Small integers, whose sums here are exact in every type."""
    return rng.integers(0 if dtype is u8 else low, high, shape).astype(storage(dtype))


def formulas(rng: np.random.Generator) -> Trials:
    """All trials of this module."""
    for trials_of in (_sequences, _conversions, _extremes, _powers):
        yield from trials_of(rng)


def _sequences(rng: np.random.Generator) -> Trials:
    """Functions with a dedicated sequence on the GPU, over all of f32, within an ulp of correct rounding."""
    specials = [0.0, 2.0**-149, 2.0**-126, 2.0**-124, 1.0, 0.921875, 4.0, 2.0**124, 2.0**126, (2 - 2.0**-23) * 2.0**127]
    special = np.array([*specials, np.inf, np.nan], np.float32)
    special = np.concatenate((special, -special))
    any_bits = rng.integers(0, 2**32, (2, 2048), dtype=np.uint64).astype(np.uint32).view(np.float32)
    moderate = rng.uniform(-4, 4, (2, 2048)).astype(np.float32)
    edges = np.stack((np.repeat(special, special.size), np.tile(special, special.size)))
    x, y = np.concatenate((any_bits, moderate, edges), axis=1)
    with np.errstate(all="ignore"):
        quotients = x / y
        shares = x / (np.abs(y) + np.float32(1))
        errors = np.array([math.erf(a) for a in x], np.float32)
        steps = [np.where(np.isfinite(w), np.spacing(np.abs(w)), 0) for w in (quotients, shares, 2 * errors)]
    for name, header, call, expected, step in (
        ("division", "arithmetic", "mlc_div(x[i], y[i])", quotients, steps[0]),
        ("division_by_large", "arithmetic", "mlc_div_large(x[i], fabsf(y[i]) + 1.0f)", shares, steps[1]),
        ("error_function", "mathematics", "mlc_erf(x[i])", errors, steps[2]),
    ):
        yield elementwise(name, header, call, (("x", f32, x), ("y", f32, y)), expected, step)


def _conversions(rng: np.random.Generator) -> Trials:
    """All 16-bit floats to f32; and from f32 to 16 bits, samples of each exponent, halfway cases and special values."""
    all_bits = np.arange(1 << 16, dtype=np.int32)
    wide = (all_bits.astype(np.uint32) << 16).view(np.float32)
    half = all_bits.astype(np.uint16).view(np.float16).astype(np.float32)
    for name, values in (("bf16", wide), ("f16", half)):
        call = f"mlc_from_{name}((unsigned short)x[i])"
        yield elementwise(f"from_{name}", "convert", call, (("x", i32, all_bits),), values)
    halfway = rng.integers(0, 2**16, (1024,), dtype=np.uint32) << 16 | np.uint32(0x8000)
    of_half = half[np.isfinite(half)].astype(np.float64)
    between = ((of_half[:-1] + of_half[1:]) / 2).astype(np.float32)[rng.integers(0, of_half.size - 1, 1024)]
    any_bits = rng.integers(0, 2**32, 4096, dtype=np.uint64).astype(np.uint32).view(np.float32)
    specials = [0, 2.0**-25, 65504, 65519.996, 65520, 2.0**-133, 2.0**-134, 3.3961775e38, np.inf, np.nan]
    moderate = rng.uniform(-9e4, 9e4, 2048)
    x = np.concatenate((any_bits, halfway.view(np.float32), between, np.array([*moderate, *specials], np.float32)))
    x = np.concatenate((x, -x))
    with np.errstate(all="ignore"):
        to_half = x.astype(np.float16).view(np.uint16)
    bits = x.view(np.uint32).astype(np.uint64)
    to_wide = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    for name, raw in (("bf16", to_wide), ("f16", to_half)):
        wanted = np.where(np.isnan(x), 0x7FFF, raw).astype(np.int64)
        pairs = (wanted[0::2] | wanted[1::2] << 16).astype(np.uint32).view(np.int32)
        body = f"""
for (int i = t; i < {x.size}; i += 64) out[i] = mlc_to_{name}(x[i]);
for (int i = t; i < {x.size // 2}; i += 64) pairs[i] = (int)mlc_pack_{name}(x[2 * i], x[2 * i + 1]);
"""
        outputs = (("out", i32, wanted.astype(np.int32)), ("pairs", i32, pairs))
        yield handwritten(f"to_{name}", "", body, ("convert",), (("x", f32, x),), outputs, threads=64)


def _extremes(rng: np.random.Generator) -> Trials:
    """Minimum and maximum propagate NaN."""
    special = np.array([0.0, 2.0**-149, 1.0, 3.0e38, np.inf, np.nan], np.float32)
    special = np.concatenate((special, -special))
    x, y = np.repeat(special, special.size), np.tile(special, special.size)
    for name, combine in (("max", np.maximum), ("min", np.minimum)):
        memory = ("x", f32, x), ("y", f32, y)
        yield elementwise(f"{name}_f32", "arithmetic", f"mlc_{name}(x[i], y[i])", memory, combine(x, y))


def _powers(rng: np.random.Generator) -> Trials:
    """Powers of two within a relative 2^-22, and zero if subnormal; reciprocal roots within two ulp."""
    x = np.concatenate((rng.uniform(-150, 130, 4096), [0.0, -0.0, 1.0, -126.0, 127.0, 128.0, np.inf, -np.inf, np.nan]))
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.exp2(x.astype(np.float64))
        powers = np.where(exact < 2.0**-126, 0, exact).astype(np.float32)
        tolerance = np.where(np.isfinite(powers), 2.0**-22 * np.abs(powers), 0) + np.where(x < -125.99, 2.0**-126, 0)
        tolerance = np.where((x == 0) | ~np.isfinite(x), 0, tolerance)
    bits = np.concatenate((rng.integers(1, 0x7F800000, 4096), [1, 0x007FFFFF, 0x00800000, 0x7F800000, 0x7FC00000]))
    y = np.concatenate((bits.astype(np.uint32).view(np.float32), [0.0, -1.0])).astype(np.float32)
    with np.errstate(all="ignore"):
        roots = (1 / np.sqrt(y.astype(np.float64))).astype(np.float32)
        steps = np.where(np.isfinite(roots), 2 * np.spacing(np.abs(roots)), 0)
    for name, call, values, expected, step in (
        ("exp2_ftz", "mlc_exp2_ftz(x[i])", x, powers, tolerance),
        ("reciprocal_root", "mlc_rsqrt(x[i])", y, roots, steps),
    ):
        yield elementwise(name, "mathematics", call, (("x", f32, values),), expected, step)
