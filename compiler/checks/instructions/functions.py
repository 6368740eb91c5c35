"""Trials of device functions without a row: atomics, votes, hinted accesses, barriers, clusters, bulk copies.

Each is a handwritten kernel with outputs expected by NumPy. `needs` is the required feature of the target.
"""

from __future__ import annotations

import numpy as np

from compiler.checks.instructions.formulas import NamedTrial, Trials, formulas, handwritten, small_integers
from compiler.checks.instructions.trial import TYPES
from compiler.interpret.scalar import storage
from compiler.ir.dtype import DType, bf16, f16, f32, f64, i8, i16, i32, i64, u8
from compiler.runtime.launches import Map


def functions(seed: int) -> Trials:
    """The trials of all device functions."""
    rng = np.random.default_rng(seed)
    arithmetic = (formulas, _extremes, _atomics, _vector_atomics, _warp)
    for trials_of in (
        *arithmetic,
        _hinted_accesses,
        _barriers,
        _arriving_copies,
        _clusters,
        _cluster_signals,
        _bulk_copies,
        _launches,
    ):
        yield from trials_of(rng)


def _extremes(rng: np.random.Generator) -> Trials:
    """Min and max of three operands, one negated or an absolute value: a single instruction on some targets."""
    negations = [(dtype, "", "-{}" if dtype.is_float else "mlc_negated({})") for dtype in (i8, i16, i32, i64, f32)]
    negations += [(i32, "_as_difference", "mlc_sub(0, {})"), (i32, "_as_product", "mlc_mul({}, -1)")]
    negations += [(i32, "_as_complement", "mlc_add(~{}, 1)"), (i32, "_as_quotient", "mlc_truncdiv({}, -1)")]
    for dtype, kind, negation in negations:
        x = small_integers(rng, dtype, (3, 32), -9, 9)
        a, b, c = x
        negated = ", ".join(f"{name} = {negation.format(operand)}" for name, operand in zip("pqr", "abc", strict=True))
        body = f"""
const auto a = x[t], b = x[32 + t], c = x[64 + t];
const decltype(x[0] + 0) {negated}, s = mlc_abs(a);
out[t] = mlc_min(mlc_min(p, q), r);
out[32 + t] = mlc_max(mlc_max(p, q), r);
out[64 + t] = mlc_min(mlc_max(s, q), c - 5);
"""
        rows = (
            np.minimum.reduce((-a, -b, -c)),
            np.maximum.reduce((-a, -b, -c)),
            np.minimum(np.maximum(abs(a), -b), c - 5),
        )
        expected = np.stack(rows).astype(storage(dtype))
        yield handwritten(
            f"extremes_{dtype}{kind}", "", body, ("arithmetic",), (("x", dtype, x),), (("out", dtype, expected),)
        )


def _atomics(rng: np.random.Generator) -> Trials:
    for dtype in (f32, f64, bf16, f16, i64, i32, i16, i8, u8):
        for op, combine in (("add", np.add), ("max", np.maximum), ("min", np.minimum), ("mul", np.multiply)):
            # Four threads combine into each of 8 elements.
            x, start = small_integers(rng, dtype, (4, 8), -2, 3), small_integers(rng, dtype, (8,), -4, 5)
            if dtype.is_float and op in ("max", "min"):
                x[1, 3] = np.nan
            expected = combine.reduce(np.concatenate((start[None], x)).astype(np.float64), axis=0)
            name = f"atomic_{op}_{dtype}"
            body = f"""
if (t < 8) out[t] = start[t];
mlc_block_barrier();
mlc_atomic_{op}(out + t % 8, x[t]);
"""
            with np.errstate(invalid="ignore"):
                memory = expected.astype(storage(dtype))
            yield handwritten(
                name, "", body, ("atomics",), (("x", dtype, x), ("start", dtype, start)), (("out", dtype, memory),),
            )  # fmt: skip
    x = small_integers(rng, i32, (4, 64), 0, 100)
    body = """
const int before = mlc_atomic_add(ticket, 1);
mlc_fence_device();
out[before] = before;
"""
    expected = np.arange(64, dtype=np.int32)
    setup = "if (blockIdx.x == 0 && t < 1) ticket[0] = 0;"  # one block: the counter is set before it is taken
    yield handwritten(
        "atomic_ticket", "", f"{setup}\nmlc_block_barrier();{body}", ("atomics",), (("x", i32, x),),
        (("ticket", i32, np.array([64], np.int32)), ("out", i32, expected)), threads=64,
    )  # fmt: skip
    body = """
if (t == 0) tickets[0] = 0;
mlc_block_barrier();
int last;
mlc_take_ticket(&last, tickets, 64);
if (last) out[0] = x[0] + tickets[0];
"""
    yield handwritten(
        "take_ticket", "", body, ("atomics",), (("x", i32, x),),
        (("tickets", i32, np.zeros(1, np.int32)), ("out", i32, x.reshape(-1)[:1].astype(np.int32))), threads=64,
    )  # fmt: skip


def _vector_atomics(rng: np.random.Generator) -> Trials:
    for dtype, width in ((f32, 4), (f16, 2), (bf16, 2)):
        x = small_integers(rng, dtype, (32, width))
        name = f"red_add{width}_{dtype}"
        body = f"""
if (t < {width}) out[t] = start[t];
mlc_block_barrier();
{TYPES[dtype.name]} mine[{width}];
for (int i = 0; i < {width}; i++) mine[i] = x[t * {width} + i];
mlc_red_add{width}(out, mine);
"""
        start = small_integers(rng, dtype, (width,))
        expected = start + x.sum(0)
        yield handwritten(
            name, "" if dtype is f16 else "red.vector", body, ("atomics",), (("x", dtype, x), ("start", dtype, start)),
            (("out", dtype, expected.astype(storage(dtype))),),
        )  # fmt: skip


def _warp(rng: np.random.Generator) -> Trials:
    x = small_integers(rng, i32, (32,))
    lanes = np.arange(32)
    ballot = (x > 0).astype(np.int64) @ (1 << lanes.astype(np.int64))
    rows = [
        x[lanes ^ 5], np.where(lanes >= 3, x[lanes - 3], x), np.where(lanes < 29, x[(lanes + 3) % 32], x),
        np.full(32, x[7]), np.full(32, x[0]), np.full(32, (x > 7).any()), np.full(32, (x > -9).all()),
        np.full(32, ballot), np.ones(32),
    ]  # fmt: skip
    body = """
const int v = x[t];
out[t] = mlc_shuffle_xor(v, 5);
out[32 + t] = mlc_shuffle_up(v, 3);
out[64 + t] = mlc_shuffle_down(v, 3);
out[96 + t] = mlc_shuffle(v, 7);
out[128 + t] = mlc_warp_uniform(v);
out[160 + t] = mlc_vote_any(v > 7);
out[192 + t] = mlc_vote_all(v > -9);
out[224 + t] = mlc_ballot(v > 0);
const bool chosen = mlc_elect();
out[256 + t] = __popc(mlc_ballot(chosen));
"""
    expected = np.stack(rows).astype(np.int64)
    yield handwritten("warp", "", body, ("vote",), (("x", i32, x),), (("out", i64, expected),))


def _hinted_accesses(rng: np.random.Generator) -> Trials:
    for size in (1, 2, 4, 8, 16):
        x = rng.integers(-128, 128, (64, size)).astype(np.int8)
        for hint in ("once", "keep"):
            name = f"load_{hint}_{size}"
            body = f"""
__align__({size}) signed char mine[{size}];
mlc_load_{hint}<{size}>(mine, x + t * {size});
mlc_store_once<{size}>(out + t * {size}, mine);
"""
            yield handwritten(name, "", body, ("streaming",), (("x", i8, x),), (("out", i8, x),), threads=64)


def _barriers(rng: np.random.Generator) -> Trials:
    x = small_integers(rng, f32, (4, 64))
    # Two warps fill and two others read one buffer repeatedly: barrier 1 signals full, barrier 2 empty.
    body = """
MLC_SHARED(float, s, 64, 16);
for (long i = 0; i < 4; i++) {
    if (t < 64) {
        if (i > 0) mlc_named_barrier(2, 128);
        s[t] = x[i * 64 + t];
        mlc_named_barrier_arrive(1, 128);
    } else {
        mlc_named_barrier(1, 128);
        out[i * 64 + t - 64] = s[127 - t];
        if (i < 3) mlc_named_barrier_arrive(2, 128);
    }
}
"""
    expected = x[:, ::-1].copy()
    yield handwritten(
        "named_barrier", "", body, ("mbarrier",), (("x", f32, x),), (("out", f32, expected),), threads=128
    )
    body = """
MLC_SHARED(float, s, 64, 16);
mlc_block_barrier();
for (long i = 0; i < 4; i++) {
    if (t < 64) {
        mlc_mbarrier_wait(empty, i % 2 ^ 1);
        s[t] = x[i * 64 + t];
        mlc_mbarrier_arrive(full);
    } else {
        mlc_mbarrier_wait(full, i % 2);
        out[i * 64 + t - 64] = s[127 - t];
        mlc_mbarrier_arrive(empty);
    }
}
"""
    yield handwritten(
        "mbarrier", "mbarrier", body, ("mbarrier",), (("x", f32, x),), (("out", f32, expected),), threads=128,
        mbarriers={"full": 64, "empty": 64},
    )  # fmt: skip


def _arriving_copies(rng: np.random.Generator) -> Trials:
    x = small_integers(rng, f32, (3, 32, 4))
    body = """
MLC_SHARED(float, s, 384, 16);
MLC_SHARED(unsigned long, full, 3, 8);
if (t == 0) {
    for (int i = 0; i < 3; i++) mlc_mbarrier_init(full + i, 32);
    mlc_mbarrier_fence_init();
}
mlc_block_barrier();
for (long i = 0; i < 3; i++) {
    mlc_cp_async<16>(s + i * 128 + t * 4, x + i * 128 + t * 4);
    mlc_cp_async_arrive(full + i);
}
for (long i = 0; i < 3; i++) {
    mlc_mbarrier_wait(full + i, 0);
    for (long j = 0; j < 4; j++) out[i * 128 + t * 4 + j] = s[i * 128 + (31 - t) * 4 + j];
}
"""
    yield handwritten(
        "cp_async_arrive", "mbarrier", body, ("async", "mbarrier"), (("x", f32, x),),
        (("out", f32, x[:, ::-1].copy()),),
    )  # fmt: skip


def _cluster_signals(rng: np.random.Generator) -> Trials:
    """Every block of a cluster arrives at the mbarrier of each."""
    x = small_integers(rng, f32, (4, 32))
    body = """
mlc_cluster_barrier();
if (t < mlc_cluster_size()) mlc_mbarrier_arrive_at(full, t);
mlc_mbarrier_wait(full, 0);
out[blockIdx.x * 32 + t] = x[blockIdx.x * 32 + t];
mlc_cluster_leave();
"""
    yield handwritten(
        "arrive_at", "cluster", body, ("cluster", "mbarrier"), (("x", f32, x),), (("out", f32, x),), blocks=4,
        cluster=(4, 1, 1), mbarriers={"full": 4},
    )  # fmt: skip


def _clusters(rng: np.random.Generator) -> Trials:
    x = small_integers(rng, f32, (4, 32))
    body = """
MLC_SHARED(float, s, 32, 16);
const long next = (mlc_cluster_rank() + 1) % mlc_cluster_size();
mlc_cluster_barrier();
if (t == 0) mlc_mbarrier_expect(full, 128);
mlc_cluster_store_async(s + t, x[blockIdx.x * 32 + t], full, next);
mlc_mbarrier_wait_cluster(full, 0);
out[blockIdx.x * 32 + t] = s[t];
mlc_cluster_barrier();
"""
    expected = np.roll(x, 1, 0)
    yield handwritten(
        "store_async", "cluster", body, ("cluster", "mbarrier"), (("x", f32, x),), (("out", f32, expected),), blocks=4,
        cluster=(4, 1, 1), mbarriers={"full": 1},
    )  # fmt: skip
    body = """
MLC_SHARED(float, s, 32, 16);
const long next = (mlc_cluster_rank() + 1) % mlc_cluster_size();
mlc_cluster_barrier();
mlc_cluster_store(s + t, x[blockIdx.x * 32 + t], next);
mlc_mbarrier_arrive_cluster(full, next);
mlc_mbarrier_wait_cluster(full, 0);
out[blockIdx.x * 32 + t] = s[t];
mlc_cluster_barrier();
"""
    yield handwritten(
        "arrive_cluster", "cluster", body, ("cluster", "mbarrier"), (("x", f32, x),), (("out", f32, expected),),
        blocks=4, cluster=(4, 1, 1), mbarriers={"full": 32},
    )  # fmt: skip
    body = """
MLC_SHARED(float, s, 32, 16);
const long next = (mlc_cluster_rank() + 1) % mlc_cluster_size();
s[t] = x[blockIdx.x * 32 + t];
mlc_cluster_barrier();
float theirs[4];
if (t < 8) {
    mlc_cluster_get<4>(theirs, s + t * 4, next);
    for (int i = 0; i < 4; i++) out[blockIdx.x * 32 + t * 4 + i] = theirs[i];
}
mlc_cluster_leave();
"""
    half = np.where(np.arange(32) < 20, np.roll(x, -1, 0), 0)
    where = body.replace("get<4>(theirs, s + t * 4, next)", "get_where<4>(theirs, s + t * 4, next, t < 5)")
    yield handwritten(
        "cluster_get_where", "cluster", where, ("cluster",), (("x", f32, x),), (("out", f32, half),), blocks=4,
        cluster=(4, 1, 1),
    )  # fmt: skip
    expected = np.roll(x, -1, 0)
    yield handwritten(
        "cluster_get", "cluster", body, ("cluster",), (("x", f32, x),), (("out", f32, expected),), blocks=4,
        cluster=(4, 1, 1),
    )  # fmt: skip


def _bulk_copies(rng: np.random.Generator) -> Trials:
    x = rng.integers(-128, 128, (512,)).astype(np.int8)
    prologue = """
MLC_DYNAMIC_SHARED(s);
unsigned long* const full = (unsigned long*)(s + 1024);
if (t == 0) {
    mlc_mbarrier_init(full, 1);
    mlc_mbarrier_fence_init();
}
"""
    body = f"""{prologue}
mlc_block_barrier();
if (t == 0) {{
    mlc_mbarrier_expect(full, 512);
    mlc_bulk_load(s, x, 512, full);
}}
mlc_mbarrier_wait(full, 0);
for (long e = t; e < 512; e += 32) s[e] += 1;
mlc_fence_async();
mlc_block_barrier();
if (t == 0) {{
    mlc_bulk_store(out, s, 512);
    mlc_bulk_commit();
    mlc_bulk_wait_read<0>();
    mlc_bulk_wait<0>();
}}
"""
    yield handwritten("bulk", "tma", body, ("tma",), (("x", i8, x),), (("out", i8, x + np.int8(1)),), shared=1032)
    # Block 0 loads for both; each block stores what it received plus its rank.
    y = small_integers(rng, f32, (8, 32))
    body = f"""{prologue}
mlc_cluster_barrier();
if (t == 0) mlc_mbarrier_expect(full, 1024);
if (t == 0 && mlc_cluster_rank() == 0) {{
    mlc_tma_prefetch(m0);
    mlc_tma_load_multicast(s, m0, full, 3, 0l, 0l);
}}
mlc_mbarrier_wait_cluster(full, 0);
for (long e = t; e < 256; e += 32) out[blockIdx.x * 256 + e] = ((float*)s)[e] + mlc_cluster_rank();
mlc_cluster_barrier();
"""
    expected = np.stack((y, y + 1))
    tensor = Map(0, "f32", (32, 8), (4, 128), (32, 8))
    yield handwritten(
        "tma_multicast", "tma", body, ("tma", "cluster"), (("x", f32, y),), (("out", f32, expected),), blocks=2,
        cluster=(2, 1, 1), maps=(tensor,), shared=1032,
    )  # fmt: skip
    for dtype in (f32, i32, f16, bf16):
        yield _tma_add(rng, dtype)


def _tma_add(rng: np.random.Generator, dtype: DType) -> NamedTrial:
    c = TYPES[dtype.name]
    size = dtype.bytes
    z, start = small_integers(rng, dtype, (4, 16)), small_integers(rng, dtype, (4, 16))
    body = f"""
MLC_DYNAMIC_SHARED(s);
for (long e = t; e < 64; e += 32) out[e] = start[e];
for (long e = t; e < 64; e += 32) (({c}*)s)[e] = x[e];
mlc_fence_async_all();
mlc_block_barrier();
if (t == 0) {{
    mlc_tma_add<{c}>(m0, s, 0l, 1l);
    mlc_bulk_commit();
    mlc_bulk_wait<0>();
}}
"""
    expected = start.copy()
    expected[1:] = start[1:] + z[:-1]
    tensor = Map(2, dtype.name, (16, 4), (size, 16 * size), (16, 4))
    return handwritten(
        f"tma_add_{dtype}", "tma", body, ("tma",), (("x", dtype, z), ("start", dtype, start)),
        (("out", dtype, expected),), maps=(tensor,), shared=1024,
    )  # fmt: skip


def _launches(rng: np.random.Generator) -> Trials:
    x = small_integers(rng, f32, (256,))
    body = "mlc_wait_dependencies();\nout[t] = x[t];\nmlc_launch_dependents();"
    yield handwritten("dependent_launch", "pdl", body, ("launch",), (("x", f32, x[:32]),), (("out", f32, x[:32]),))
    body = """
if (mlc_warp_uniform(t / 128) == 0) {
    mlc_registers_decrease<40>();
    out[t] = x[t];
} else {
    mlc_registers_increase<232>();
    out[t] = x[t] + 1.0f;
}
"""
    expected = x + np.repeat(np.array([0, 1], np.float32), 128)
    yield handwritten(
        "registers", "setmaxnreg", body, ("registers", "vote"), (("x", f32, x),), (("out", f32, expected),),
        threads=256,
    )  # fmt: skip
