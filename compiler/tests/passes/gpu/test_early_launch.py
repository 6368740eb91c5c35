"""Kernels that start while their predecessor runs: which let their successor start, and that they wait before that."""

from __future__ import annotations

import pytest
import torch

from compiler import frontend, pipeline
from compiler.execution import gpu_programs
from compiler.ir import kernel as k
from compiler.ir import kernel_text
from compiler.passes.gpu.dependent_launch import WAIT
from compiler.passes.gpu.early_launch import NEXT, SMALL_BLOCK, early_launch
from compiler.targets.nvidia import SM_80, SM_90A
from compiler.tests.meaning import fresh_seed
from compiler.tests.passes.gpu.test_dependent_launch import reports

PROGRAM = """
def f(x: f32[64], *, y: f32[64]):
    z: f32[64]
    with function("first", [x, z], writes=[z], grid=[1], block=[64, 1, 1]):
        {first_start}
        call("mlc_wait_dependencies", [], writes=[])
        z[thread.x] = {first_value}
    with function("second", [z, y], writes=[y], grid=[{second_grid}], block=[64, 1, 1]):
        {second_start}
        call("mlc_wait_dependencies", [], writes=[])
        y[thread.x] = {second_value}
"""
PLAIN = {
    "first_start": "",
    "first_value": "-x[thread.x]",
    "second_start": "",
    "second_value": "z[thread.x]",
    "second_grid": "1",
}
LARGE = f"tile = array(shared, f32, {SMALL_BLOCK // 4 + 1}, 16)"


def starts(**parts: str) -> list[bool]:
    text = "\n".join(line for line in PROGRAM.format(**(PLAIN | parts)).splitlines() if line.strip())
    program = kernel_text.parse(text + "\n")
    assert early_launch(program, SM_80) is program
    made = early_launch(program, SM_90A)
    assert early_launch(made, SM_90A) is made
    for f in made.functions:
        assert NEXT not in f.body or f.body.index(NEXT) == f.body.index(WAIT) + 1
    return [NEXT in f.body for f in made.functions]


def test_all_but_the_last_let_their_successor_start() -> None:
    assert starts() == [True, False]


def test_large_blocks_start_when_their_predecessor_has_ended() -> None:
    many = str(SM_90A.cores + 1)
    assert starts(second_start=LARGE, second_grid=many) == [False, False]
    assert starts(second_start=LARGE, first_start=LARGE.replace("tile", "other")) == [False, False]
    assert starts(first_start=LARGE, second_grid=many) == [True, False]


def test_few_large_blocks_start_beside_small_ones() -> None:
    assert starts(second_start=LARGE) == [True, False]


def test_a_kernel_that_reads_what_it_writes_ends_first() -> None:
    assert starts(first_value="z[thread.x] + x[thread.x]") == [False, False]


def test_equal_kernels_do_the_same_so_that_the_text_has_one() -> None:
    assert starts(second_value="z[thread.x] * 2.0", first_value="x[thread.x] * 2.0") == [True, True]


@pytest.mark.parametrize("early", [True, False])
def test_the_emulator_finds_a_kernel_that_does_not_wait_before_it_lets_its_successor_start(early: bool) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(24, 96)
    lowering = pipeline.lower(frontend.capture(lambda x: torch.softmax(x, -1).cumsum(0).sum(1), [x]).program, SM_90A)
    text = gpu_programs.text(lowering, "kernel")
    both = "  mlc_wait_dependencies();\n  mlc_launch_dependents();\n"
    assert both in text
    if early:
        text = text.replace(both, "".join(reversed(both.splitlines(keepends=True))))
    assert reports(text, lowering, [x], seed) == ({"launch dependency"} if early else set()), f"seed {seed}"
    assert any(isinstance(s, k.Call) and s is NEXT for f in lowering.stages["kernel"].functions for s in f.body)
