"""Sums weighted by a softmax on processors: one pass over keys by vectors of queries, the same at every stage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compiler.interpret import tile as tile_interpreter
from compiler.ir import tile
from compiler.ir.expr import Var, dim, static, substitute
from compiler.ir.index import simplify
from compiler.ir.node import Node
from compiler.pipeline import Lowering
from compiler.schedule.block_steps import Online
from compiler.schedule.steps import Pack, parse, show
from compiler.targets import cpu
from compiler.tests import run_kernel
from compiler.tests.meaning import fresh_seed
from compiler.tests.passes.tile.test_online import (
    CASES,
    CAUSAL,
    STRANGE,
    attention,
    check_strange,
    close,
    given,
    lowered,
    wanted,
)

TARGETS = {t.name: t for t in (cpu.AVX2, cpu.AVX512, cpu.BASELINE)}
MORE = CASES | {
    "f64": attention(40, 70, 64, dtype="float64"),
    "queries that fill no block, three blocks of keys": attention(75, 500, 16, dtype="float32"),
    "one block": attention(64, 64, 64, CAUSAL, "float32"),
    "blocks of keys of two sizes": attention(64, 257, 16, CAUSAL, "float32"),
}


def nodes(lowering: Lowering) -> Iterator[Node]:
    return (n for k in lowering.stages["tile"].kernels for s in k.body for n in s.walk())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MORE)
def test_one_kernel_with_the_same_meaning(name: str, target: str) -> None:
    made, seed = lowered(MORE[name], TARGETS[target]), fresh_seed()
    assert [len(made.stages["tile"].kernels), len(made.stages["tile"].temps)] == [1, 0]
    assert all(parse(show(s)) is s for s in made.schedules.values())
    arrays = given(made, seed)
    close(made, tile_interpreter.run(made.stages["tile"], arrays)[0], wanted(made, arrays), seed)


@pytest.mark.parametrize("name", ["causal", "f32, odd rows", "blocks of keys of two sizes"])
def test_vectors_compute_it(name: str) -> None:
    made, seed = lowered(MORE[name], cpu.AVX512, "kernel"), fresh_seed()
    arrays = given(made, seed)
    close(made, run_kernel.run(made.stages["kernel"], arrays)[0], wanted(made, arrays), seed)


@pytest.mark.parametrize("name", STRANGE)
def test_nan_and_infinity(name: str) -> None:
    check_strange(name, cpu.AVX512)


def test_keys_that_no_query_of_a_block_sees_are_left_out() -> None:
    made = lowered(attention(129, 320, 8, CAUSAL, "float32"), cpu.AVX512)
    (turns,) = (n for n in nodes(made) if isinstance(n, tile.For) and n.kind == "scan")
    (blocks,) = (n for n in nodes(made) if isinstance(n, tile.For) and n.var == "k0")
    (way,) = (s for m in made.schedules.values() for s in m.steps if isinstance(s, Online))
    for block in range(static(blocks.extent)):
        last = min(320, (static(blocks.extent) - block) * way.rows)  # the last queries, with most keys, begin
        assert static(simplify(substitute(turns.extent, {Var("k0"): dim(block)}), {})) == -(-last // way.keys)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_queries_are_turned_where_keys_and_values_are_as_wide_as_their_sums(dtype: str) -> None:
    made = lowered(attention(128, 128, 64, dtype=dtype), cpu.AVX512)
    (schedule,) = made.schedules.values()
    packed = [s.tile.rpartition("_")[2] for s in schedule.steps if isinstance(s, Pack)]
    assert packed == (["query"] if dtype == "float32" else ["query", "key", "value"])


def test_few_queries_stay_in_kernels_of_their_own() -> None:
    assert len(lowered(attention(15, 64, 64), cpu.AVX512).stages["tile"].kernels) == 3
    assert len(lowered(attention(15, 64, 64), cpu.AVX2).stages["tile"].kernels) == 1
