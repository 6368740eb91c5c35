"""Sums weighted by a softmax: found in any spelling, made in one pass over keys, the same numbers at every stage."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pytest
import torch

import compiler
from compiler import pipeline
from compiler.checks import inspection
from compiler.execution.expression import program
from compiler.frontend import capture
from compiler.interpret import tensor as tensor_interpreter
from compiler.interpret import tile as tile_interpreter
from compiler.interpret.scalar import Array
from compiler.ir import tile
from compiler.ir.expr import Var, dim, static, substitute
from compiler.ir.index import simplify
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.runtime import cubin
from compiler.schedule.steps import parse, show
from compiler.targets import legal, nvidia
from compiler.targets.target import Target
from compiler.tests import run_threads
from compiler.tests.meaning import fresh_seed, random_arrays

TARGETS = {t.name: t for t in nvidia.TARGETS}


def attention(
    queries: int, keys: int, features: int, more: str = "", dtype: str = "bfloat16", heads: tuple[int, int] = (2, 2),
    values: int = 0,
) -> str:  # fmt: skip
    q, k, v = (
        f"torch.randn(2, {h}, {n}, {d}, dtype=torch.{dtype})"
        for h, n, d in ((heads[0], queries, features), (heads[1], keys, features), (heads[1], keys, values or features))
    )
    return f"F.scaled_dot_product_attention({q}, {k}, {v}{more})"


def by_hand(queries: int, keys: int, features: int, dtype: str) -> str:
    def of(*shape: int) -> str:
        return f"torch.randn({', '.join(map(str, shape))}, dtype=torch.{dtype})"

    q, k, v, mask = of(2, queries, features), of(2, features, keys), of(2, keys, features), of(queries, keys)
    return f"F.softmax({q} @ {k} * 0.125 + {mask}, -1) @ {v}"


CAUSAL, GROUPED = ", is_causal=True", ", is_causal=True, enable_gqa=True"
CASES = {
    "causal": attention(70, 70, 64, CAUSAL),
    "grouped": attention(65, 65, 64, GROUPED, heads=(4, 2)),
    "f16": attention(64, 129, 64, dtype="float16"),
    "96 features": attention(40, 65, 96, CAUSAL),
    "128 features": attention(31, 64, 128),
    "values are wider": attention(33, 63, 24, values=72),
    "odd rows": attention(20, 33, 33, CAUSAL),
    "few keys": attention(33, 3, 16),
    "more queries than keys": attention(129, 65, 64, CAUSAL),
    "bool mask": attention(40, 70, 64, ", attn_mask=torch.randn(40, 70) > 0"),
    "float mask": attention(40, 70, 64, ", attn_mask=torch.randn(2, 1, 40, 70, dtype=torch.bfloat16), scale=0.5"),
    "row of a mask": attention(40, 70, 64, ", attn_mask=torch.randn(1, 70) > 0"),
    "by hand": by_hand(40, 70, 64, "bfloat16"),
    "f32": attention(65, 65, 64, GROUPED, "float32", (4, 2)),
    "f32, 128 features": attention(40, 33, 128, "", "float32"),
    "f32, odd rows": attention(20, 33, 33, CAUSAL, "float32"),
    "f32, mask": attention(40, 70, 40, ", attn_mask=torch.randn(40, 70) > 0", "float32"),
    "f32, by hand": by_hand(33, 70, 64, "float32"),
}


@functools.cache
def captured(expression: str) -> Any:
    function, inputs = program(expression, 1)
    with torch.no_grad():
        return capture(function, inputs).program


def lowered(expression: str, target: Target, until: str = "tile") -> pipeline.Lowering:
    return pipeline.lower(captured(expression), target, until=until)


def given(lowering: pipeline.Lowering, seed: int) -> list[Array]:
    return random_arrays(lowering.stages["tensor"].inputs, seed)


def wanted(lowering: pipeline.Lowering, arrays: list[Array]) -> Array:
    return tensor_interpreter.run(lowering.stages["tensor"], arrays)[0]


def close(lowering: pipeline.Lowering, got: Array, want: Array, seed: int) -> None:
    """Equal up to rounding: weights of 16 bits are rounded before rather than after they are divided by their sum."""
    narrow = lowering.stages["tensor"].inputs[0].dtype.bits == 16
    rounding = 2.0**-8 if narrow else 2.0**-20
    finite = want[np.isfinite(want)]
    size = float(np.abs(finite).max()) if finite.size else 0.0
    # Every result is a mean of values: the largest one is about as large as they are.
    np.testing.assert_allclose(
        np.asarray(got, np.float64).reshape(-1), np.asarray(want, np.float64).reshape(-1), rtol=2 * rounding,
        atol=2 * rounding * size, err_msg=f"seed {seed}",
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_with_the_same_meaning(name: str) -> None:
    made = lowered(CASES[name], TARGETS["sm_80"])
    tiles, seed = made.stages["tile"], fresh_seed()
    assert [len(tiles.kernels), len(tiles.temps)] == [1, 0]
    assert all(parse(show(s)) is s for s in made.schedules.values())
    legal.verify(tiles, made.target)
    arrays = given(made, seed)
    want = wanted(made, arrays)
    close(made, tile_interpreter.run(loop_to_tile(made.stages["loop"]), arrays)[0], want, seed)
    close(made, tile_interpreter.run(tiles, arrays)[0], want, seed)


@pytest.mark.parametrize("name", ["grouped", "96 features", "bool mask", "by hand", "f32", "f32, 128 features"])
def test_threads_compute_it_without_a_race(name: str) -> None:
    made = lowered(CASES[name], TARGETS["sm_80"], "kernel")
    seed = fresh_seed()
    arrays = given(made, seed)
    close(made, run_threads.run(made.stages["kernel"], arrays)[0], wanted(made, arrays), seed)


WARPGROUPS = {
    "80 features": attention(65, 130, 80, CAUSAL),
    "keys of 48 features, values of 256": attention(40, 70, 48, heads=(1, 1), values=256),
    "one group": attention(65, 200, 64, GROUPED, heads=(2, 1)),
    "two groups": attention(130, 140, 96, GROUPED, heads=(2, 1)),
    "f16, 128 features": attention(70, 129, 128, dtype="float16"),
    "few keys, bool mask": attention(65, 50, 64, ", attn_mask=torch.randn(65, 50) > 0"),
    "keys that lie along the heads": by_hand(64, 136, 64, "bfloat16"),
    "two groups, a mask of floats": attention(70, 136, 96, ", attn_mask=torch.randn(2, 1, 70, 136)", heads=(1, 1)),
    "a mask of floats for each batch": attention(130, 72, 64, ", attn_mask=torch.randn(2, 1, 130, 72)", heads=(1, 1)),
}


@pytest.mark.parametrize("name", WARPGROUPS)
def test_warpgroups_compute_it_without_a_race(name: str) -> None:
    made = lowered(WARPGROUPS[name], TARGETS["sm_90a"].replace(cores=2), "kernel")
    tiles, seed = made.stages["tile"], fresh_seed()
    legal.verify(tiles, made.target)
    used = {n.instruction for k in tiles.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Mma)}
    assert len(used) == 2
    assert all(x.startswith("wgmma") for x in used)
    arrays = given(made, seed)
    want = wanted(made, arrays)
    close(made, tile_interpreter.run(tiles, arrays)[0], want, seed)
    close(made, run_threads.run(made.stages["kernel"], arrays)[0], want, seed)


@pytest.mark.parametrize("name", ["two groups", "one group"])
def test_of_two_groups_the_softmax_runs_beside_the_products(name: str) -> None:
    made = lowered(WARPGROUPS[name], TARGETS["sm_90a"].replace(cores=2), "cuda")
    text = made.show("cuda")
    assert ("overlap=1" in text) == ("mlc_wgmma_wait<1>" in text) == (name == "two groups")


BY_WARPS = {
    "f32": attention(65, 65, 64, GROUPED, "float32", (4, 2)),
    "f32, by hand": by_hand(33, 72, 64, "float32"),
    "few queries": attention(20, 70, 64),
}


@pytest.mark.parametrize("name", BY_WARPS)
def test_the_copy_engine_brings_what_warps_multiply(name: str) -> None:
    made = lowered(BY_WARPS[name], TARGETS["sm_90a"], "kernel")
    nodes = [n for k in made.stages["tile"].kernels for s in k.body for n in s.walk()]
    assert {
        n.how for n in nodes if isinstance(n, tile.Copy) and n.target.buffer.endswith(("_query", "_key", "_value"))
    } == {"tma"}
    assert not any(n.instruction.startswith("wgmma") for n in nodes if isinstance(n, tile.Mma))
    seed = fresh_seed()
    arrays = given(made, seed)
    close(made, run_threads.run(made.stages["kernel"], arrays)[0], wanted(made, arrays), seed)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_target_has_a_schedule(dtype: str, target: str) -> None:
    for features in (64, 128):
        made = lowered(attention(128, 128, features, CAUSAL, dtype), TARGETS[target]).stages["tile"]
        legal.verify(made, TARGETS[target])
        # Three products of tf32 of wide heads are faster by four warps each, with scores in the L2 between them.
        apart = (dtype, features, target) == ("float32", 128, "sm_90a")
        assert len(made.kernels) == (3 if apart else 1)


def test_scores_that_do_not_stay_in_the_l2_stay_in_registers() -> None:
    made = lowered(attention(4096, 4096, 128, dtype="float32"), TARGETS["sm_90a"]).stages["tile"]
    assert len(made.kernels) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_keys_that_no_query_of_a_block_sees_are_left_out(dtype: str) -> None:
    made = lowered(attention(129, 320, 64, CAUSAL, dtype), TARGETS["sm_80"]).stages["tile"]
    nodes = [n for k in made.kernels for s in k.body for n in s.walk()]
    (turns,) = (n for n in nodes if _is_pipeline(n))
    (blocks,) = (n for n in nodes if isinstance(n, tile.For) and n.var == "k0")
    rows = next(n.tensor.shape[0] for n in nodes if isinstance(n, tile.Alloc) and n.tensor.name.endswith("_max_"))
    keys = next(n.target.lengths[0] for n in nodes if isinstance(n, tile.Copy) and n.target.buffer.endswith("_key"))
    for block in range(static(blocks.extent)):
        last = min(320, (static(blocks.extent) - block) * static(rows))  # the last queries, with most keys, begin
        assert static(simplify(substitute(turns.extent, {Var("k0"): dim(block)}), {})) == -(-last // keys)


def _is_pipeline(n: object) -> TypeGuard[tile.For]:
    return isinstance(n, tile.For) and n.bind.level == "pipeline"


# ---- values that are no ordinary numbers


def with_row(which: int, value: float) -> Callable[[list[Array]], None]:
    def change(arrays: list[Array]) -> None:
        arrays[which][..., 1, :] = value

    return change


def masked_rows(arrays: list[Array]) -> None:
    arrays[3][..., 3, :] = 0 if arrays[3].dtype == np.bool_ else -np.inf
    arrays[3][..., 5, :32] = 0 if arrays[3].dtype == np.bool_ else -np.inf


def large_scores(arrays: list[Array]) -> None:
    arrays[0] *= 2.0**10


STRANGE: dict[str, tuple[str, Callable[[list[Array]], None]]] = {
    "a query is NaN": ("causal", with_row(0, np.nan)),
    "a query is infinite": ("f16", with_row(0, np.inf)),
    "a value is infinite": ("f16", with_row(2, np.inf)),
    "a row of a bool mask": ("bool mask", masked_rows),
    "a row of a float mask": ("float mask", masked_rows),
    "a row of a bool mask in f32": ("f32, mask", masked_rows),
    "scores that differ by thousands": ("causal", large_scores),
}


def check_strange(name: str, target: Target) -> None:
    """NaN and infinity come out where they should."""
    case, change = STRANGE[name]
    made, seed = lowered(CASES[case], target), fresh_seed()
    arrays = given(made, seed)
    change(arrays)
    with np.errstate(all="ignore"):
        want = wanted(made, arrays)
        got = tile_interpreter.run(made.stages["tile"], arrays)[0]
    close(made, got, want, seed)


@pytest.mark.parametrize("name", STRANGE)
def test_nan_and_infinity(name: str) -> None:
    check_strange(name, TARGETS["sm_80"])


def test_a_softmax_by_hand_of_nothing_is_nan() -> None:
    made = lowered(by_hand(33, 70, 64, "float32"), TARGETS["sm_80"])
    seed = fresh_seed()
    arrays = given(made, seed)
    place = next(n for n, t in enumerate(made.stages["tensor"].inputs) if len(t.shape) == 2)
    arrays[place][4, :] = -np.inf
    want, got = wanted(made, arrays), tile_interpreter.run(made.stages["tile"], arrays)[0]
    assert np.isnan(want).any()
    close(made, got, want, seed)


# ---- what is left as it was

APART = {
    "few queries of many keys that do not divide": (attention(8, 300, 64), 1),
    "wide values": (attention(40, 64, 256), 1),
    "f64": (attention(40, 64, 64, dtype="float64"), 1),
    "weights are a result": (
        "(lambda p: (p, p @ torch.randn(2, 40, 64)))(F.softmax(torch.randn(2, 40, 64) @ torch.randn(2, 64, 40), -1))",
        2,
    ),
}


@pytest.mark.parametrize("name", APART)
def test_other_sums_stay_in_kernels_of_their_own(name: str) -> None:
    expression, results = APART[name]
    made = lowered(expression, TARGETS["sm_80"], "loop").stages["loop"]
    assert len(made.kernels) == 3
    assert len(made.outputs) == results


def test_whoever_leaves_the_pass_out_keeps_three_kernels() -> None:
    without = pipeline.lower(
        captured(CASES["causal"]), TARGETS["sm_80"], until="loop", gate=lambda name, _: name != "fuse-attention"
    ).stages["loop"]
    assert len(without.kernels) == 3


# ---- compiled


@pytest.mark.skipif(
    cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None, reason="no CUDA compiler on this machine"
)
def test_machine_code_keeps_everything_in_registers(tmp_path: Path) -> None:
    measured = [attention(512, 512, d, GROUPED, t, (28, 4)) for d in (64, 128) for t in ("bfloat16", "float32")]
    measured.append(by_hand(128, 128, 128, "float32"))
    measured.append(attention(1024, 1024, 128, GROUPED, heads=(28, 4)))
    made = [lowered(e, TARGETS[t], "cuda") for e in measured for t in ("sm_80", "sm_90a")]
    public = [compiler.Lowering(m.stages, m.target, m.schedules) for m in made]
    for found in inspection.inspect(public, tmp_path):
        if len(found) > 1:
            continue  # products of their own are looked at with all others
        (kernel,) = found
        assert not (kernel.stack or kernel.spilled or kernel.complaints), kernel
