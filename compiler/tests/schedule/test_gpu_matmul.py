"""Contractions scheduled for tensor cores: every size, type, layout and epilogue keeps its meaning as Tile IR."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from compiler import pipeline
from compiler.interpret import tensor as tensor_interpreter
from compiler.interpret import tile as tile_interpreter
from compiler.ir import tensor_text, tile
from compiler.ir.expr import loads, static
from compiler.ir.stages import IRS
from compiler.ir.statement import Store, within
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile import steps
from compiler.schedule.space.gpu import matmul
from compiler.schedule.steps import Schedule, parse, show
from compiler.targets import legal, nvidia
from compiler.tests.meaning import fresh_seed
from compiler.tests.schedule.test_matmul import (
    CONV,
    EPILOGUES,
    GROUPS,
    HEADS,
    LINEAR,
    PROMOTED,
    ROUNDED,
    SQUARE,
    TRANSPOSED,
    Matmul,
    arrays,
)

TARGETS = {t.name: t for t in nvidia.TARGETS}
# As few multiprocessors as make a grid of several waves of small tiles.
SMALL = {t.name: t.replace(cores=2) for t in nvidia.TARGETS}


def scheduled(text: str, target: Any) -> tuple[Any, Any]:
    """The program in Tensor IR, and as Tile IR by the heuristic's schedules, which read back and are legal."""
    made = pipeline.lower(tensor_text.parse(text), target, {}, source="tensor", until="loop")
    program = loop_to_tile(made.stages["loop"])
    for kernel in made.stages["loop"].kernels:
        found = matmul.space(kernel, target)
        if found is not None:
            schedule = Schedule(tuple(next(found[1]).steps()))
            assert parse(show(schedule)) is schedule
            program = steps.apply(program, next(k for k in program.kernels if k.name == kernel.name), schedule)
    IRS["tile"].verify(program)
    assert IRS["tile"].parse(IRS["tile"].show(program)) is program
    legal.verify(program, target)
    return made.stages["tensor"], program


def check(p: Matmul | str, target: Any) -> Any:
    """Interpreted as Tensor and as Tile IR it gives the same numbers."""
    text = p if isinstance(p, str) else p.text
    before, after = scheduled(text, target)
    seed = fresh_seed()
    given = arrays(before, seed)
    want = tensor_interpreter.run(before, given)[0]
    got = tile_interpreter.run(after, given)[0]
    said = f"{p} on {target.name}, seed {seed}:\n{IRS['tile'].show(after)}"
    assert np.array_equal(np.asarray(got).reshape(want.shape), want), said
    return after


def instructions(program: Any) -> set[str]:
    return {n.instruction for k in program.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Mma)}


SIZES = [(31, 33, 32), (32, 64, 33), (33, 31, 128), (65, 129, 64), (130, 20, 200), (16, 256, 100)]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("left", ["mk", "km"])
def test_sizes_and_layouts(size: tuple[int, int, int], left: str, right: str, dtype: str) -> None:
    made = check(Matmul(*size, left, right, dtype), TARGETS["sm_80"])
    kind = {"f32": "tf32", "f64": "f64", "bf16": "bf16"}[dtype]
    assert {name.rpartition(".")[2] for name in instructions(made)} == {kind}


@pytest.mark.parametrize("target", SMALL)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_every_target_has_tiles(dtype: str, target: str) -> None:
    for size in [(300, 260, 40), (40, 40, 1024)]:
        assert instructions(check(Matmul(*size, dtype=dtype), SMALL[target]))


@pytest.mark.parametrize("size", [(320, 328, 136), (200, 512, 264), (576, 136, 72)], ids=str)
@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("left", ["mk", "km"])
def test_hopper_multiplies_from_shared_memory(size: tuple[int, int, int], left: str, right: str) -> None:
    made = check(Matmul(*size, left, right, "bf16"), SMALL["sm_90a"])
    assert all(name.startswith("wgmma") for name in instructions(made))
    copies = [n for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Copy)]
    assert copies and all(c.how == "tma" for c in copies)


@pytest.mark.parametrize("epilogue", ["none", "relu"])
def test_blocks_stay_where_there_are_many_tiles(epilogue: str) -> None:
    p = Matmul(1100, 520, 200, right="kn", dtype="bf16", epilogue=epilogue)
    made = check(p, SMALL["sm_90a"])
    outer = [s for k in made.kernels for s in k.body if isinstance(s, tile.For)]
    clusters = [static(f.extent) for f in within((outer[0],), tile.For) if f.bind.level == "cluster"]
    assert [f.bind.level for f in outer] == ["blocks"]
    assert static(outer[0].extent) * math.prod(clusters) % SMALL["sm_90a"].cores == 0
    (turns,) = outer[0].body
    assert isinstance(turns, tile.For) and turns.var.endswith("_turn")


@pytest.mark.parametrize(
    ("p", "padded"),
    [
        (Matmul(320, 320, 131, dtype="bf16"), "a"),
        (Matmul(131, 320, 200, left="km", dtype="bf16"), "a"),
        (Matmul(200, 131, 330, right="nk", dtype="bf16", epilogue="narrow"), "ab"),
        (Matmul(200, 203, 131, dtype="f16", epilogue="residual"), "ab"),
        (Matmul(96, 104, 131, batch=3, dtype="bf16"), "a"),
    ],
    ids=str,
)
def test_rows_that_begin_anywhere_are_copied_further_apart(p: Matmul, padded: str) -> None:
    made = check(p, SMALL["sm_90a"])
    assert {name.partition(".")[0] for name in instructions(made)} == {"wgmma"}
    assert {t.name.removesuffix("_padded") for t in made.temps if t.name.endswith("_padded")} == set(padded)


@pytest.mark.parametrize(
    ("n", "epilogue", "buffer"),
    [(267, "residual", "r"), (264, "bias", "e"), (267, "bias", "e"), (264, "relu", "e"), (267, "relu", "e")],
)
def test_what_a_result_is_joined_with_is_loaded_before_the_sum(n: int, epilogue: str, buffer: str) -> None:
    made = check(Matmul(200, n, 128, right="nk", dtype="bf16", epilogue=epilogue), TARGETS["sm_90a"])
    ahead = [a.tensor for k in made.kernels for s in k.body for a in s.walk() if isinstance(a, tile.Alloc)]
    assert [t.name for t in ahead if t.name.endswith("_ahead")] == [f"{buffer}_ahead"]


@pytest.mark.parametrize("shape", [(200, 264, 128), (1000, 512, 512), (3000, 4104, 128)])
def test_the_tile_of_a_result_starts_as_the_operand_that_lies_like_it(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    text = Matmul(m, n, k, right="nk", dtype="bf16", epilogue="residual").text
    made = pipeline.lower(tensor_text.parse(text), TARGETS["sm_90a"], {}, source="tensor")
    (kernel,) = made.stages["tile"].kernels
    copies = [c for s in kernel.body for c in s.walk() if isinstance(c, tile.Copy)]
    filled = [c.source.buffer for c in copies if c.target.buffer == copies[0].target.buffer]
    assert filled == ["r"] and not any("_ahead" in t.tensor.name for t in within(kernel.body, tile.Alloc))


def test_vectors_of_both_axes_are_loaded_before_the_sum() -> None:
    text = Matmul(200, 264, 128, right="nk", dtype="bf16", epilogue="bias").text
    text = text.replace("r: f32[200, 264]", "r: f32[200]").replace("+ e[j]", "* r[i] + e[j]")
    made = check(text, TARGETS["sm_90a"])
    ahead = [a.tensor for k in made.kernels for s in k.body for a in s.walk() if isinstance(a, tile.Alloc)]
    shapes = {t.name: len(t.shape) for t in ahead if t.name.endswith("_ahead")}
    assert shapes == {"r_ahead": 1, "e_ahead": 1}


def test_pairs_that_are_loaded_behind_a_guard_do_not_wait_for_each_other() -> None:
    text = Matmul(1000, 512, 512, right="nk", dtype="bf16", epilogue="residual").text
    text = text.replace("r: f32[1000, 512]", "r: bf16[1000, 512]").replace("r[i, j]", "f32(r[i, j])")
    made = tensor_text.parse(text)
    loops = pipeline.lower(made, nvidia.SM_90A, {}, source="tensor", until="loop").stages["loop"]
    (kernel,) = loops.kernels
    for member in itertools.islice(pipeline.space(loops, kernel, nvidia.SM_90A), 60):
        chosen = {kernel.name: member.schedule}
        text = pipeline.lower(made, nvidia.SM_90A, chosen, source="tensor").stages["cuda"]
        if "mlc_load_where<2>(&r_near[0]" in text:
            break
    filled = [line for line in text.splitlines() if line.strip().startswith("r_ahead[") and "=" in line]
    assert filled and not any("?" in line for line in filled), "a select of what was just loaded waits for it"


@pytest.mark.parametrize("k", [192, 576])
def test_no_matmul_runs_when_its_loop_ends(k: int) -> None:
    text = Matmul(256, 128, k, right="nk", dtype="bf16").text
    made = pipeline.lower(tensor_text.parse(text), TARGETS["sm_90a"], {}, source="tensor").show("cuda")
    loop = made.partition("mlc_wgmma_commit();")[2]
    assert "mlc_wgmma_wait<1>();" in loop and "} else {\n        mlc_wgmma_wait<0>();" in loop, made


@pytest.mark.parametrize("n", [137, 201, 333])
def test_rows_of_a_result_that_begin_anywhere_leave_through_shared_memory(n: int) -> None:
    made = check(Matmul(130, n, 128, right="nk", dtype="bf16", epilogue="narrow"), TARGETS["sm_90a"])
    stored = [c for k in made.kernels for s in k.body for c in s.walk() if isinstance(c, tile.Copy)][-1]
    assert stored.how == "plain" and stored.source.buffer.endswith("_out")


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("k", [40, 4096])
def test_epilogues(epilogue: str, k: int) -> None:
    made = check(Matmul(19, 37, k, right="nk", epilogue=epilogue), TARGETS["sm_80"])
    assert len(made.kernels) == 1
    assert instructions(made)


@pytest.mark.parametrize(
    "text",
    [LINEAR, HEADS, GROUPS, CONV, ROUNDED, PROMOTED, SQUARE, TRANSPOSED],
    ids=["linear", "heads", "groups", "conv", "rounded", "promoted", "gram", "strides"],
)
def test_other_contractions(text: str) -> None:
    check(text, TARGETS["sm_80"])


REPEATED = """def f(a: bf16[64, 32], b: bf16[32: {step}, 128: 1], x: bf16[64: 1, 32: 0]):
    with kernel("product"):
        c[i: 64, j: 128]: f32 = sum(f32({left}[i, l]) * f32(b[l, j]) for l in range(32))
    result(c, f32[64, 128])
"""


@pytest.mark.parametrize(
    ("step", "left", "how"), [(128, "a", {"tma"}), (0, "a", {"cp.async"}), (128, "x", {"cp.async"})]
)
def test_rows_that_are_one_row_are_copied_by_threads(step: int, left: str, how: set[str]) -> None:
    made = check(REPEATED.format(step=step, left=left), SMALL["sm_90a"])
    copies = [n for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Copy)]
    assert {c.how for c in copies} & {"tma", "cp.async"} == how


VECTOR = """def f(x: f32[{k}], w: f32[{k}, {n}], e: f32[{n}]):
    with kernel("product"):
        c[j: {n}]: f32 = sum(x[l] * w[l, j] for l in range({k}))
        y[j: {n}]: f32 = max(c[j] + e[j], 0.0)
    result(y, f32[{n}])
"""
VECTORS = """def f(x: f32[3, 256], w: bf16[3, 256, 70]):
    with kernel("product"):
        c[h: 3, j: 70]: f32 = sum(x[h, l] * f32(w[h, l, j]) for l in range(256))
    result(c, f32[3, 70])
"""


@pytest.mark.parametrize("text", [VECTOR.format(k=512, n=300), VECTOR.format(k=100, n=31), VECTORS])
def test_a_matrix_times_a_vector_is_read_by_threads_side_by_side(text: str) -> None:
    program = tensor_text.parse(text)
    made = pipeline.lower(program, TARGETS["sm_80"], source="tensor", until="tile").stages["tile"]
    given = arrays(program, seed := fresh_seed())
    want = tensor_interpreter.run(program, given)[0]
    assert np.array_equal(tile_interpreter.run(made, given)[0], want), seed
    lanes = [n for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, tile.For)]
    inner = [n for n in lanes if n.kind == "reduce" and n.bind.level == "lanes"]
    assert not inner and any(n.bind.level == "lanes" for n in lanes)


@pytest.mark.parametrize("size", [(512, 256, 40), (64, 96, 37), (32, 32, 1024)], ids=str)
@pytest.mark.parametrize("right", ["kn", "nk"])
def test_without_tensor_instructions_threads_hold_squares(size: tuple[int, int, int], right: str) -> None:
    target = nvidia.strict(TARGETS["sm_90a"])
    p = Matmul(*size, right=right, epilogue="relu")
    program = tensor_text.parse(p.text)
    made = pipeline.lower(program, target.replace(cores=4), source="tensor", until="tile").stages["tile"]
    given = arrays(program, seed := fresh_seed())
    assert np.array_equal(tile_interpreter.run(made, given)[0], tensor_interpreter.run(program, given)[0]), seed
    sums = [n for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Alloc)]
    *parts, own = sums
    assert not instructions(made) and own.space == "registers" and {t.space for t in parts} <= {"device"}
    assert min(static(n) for n in own.tensor.shape) >= 2
    legal.verify(made, target)


@pytest.mark.parametrize("right", ["kn", "nk"])
def test_rows_of_parts_lie_in_banks_of_their_own(right: str) -> None:
    _, made = scheduled(Matmul(512, 512, 3584, "mk", right, "bf16").text, TARGETS["sm_90a"])
    allocs = [n for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, tile.Alloc)]
    (parts,) = (n.tensor for n in allocs if n.space == "cluster")
    stores = [n for k in made.kernels for s in k.body for n in s.walk() if isinstance(n, Store)]
    (store,) = (s for s in stores if s.buffer == parts.name)
    (summed,) = loads(store.value)
    across = store.index[1:] == summed.index
    assert static(parts.strides[-2]) - static(parts.shape[-1]) == (8 if across else 4)
