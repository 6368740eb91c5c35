"""Prefetches of inputs before the wait: which kernels ask for which, and how much of them."""

from __future__ import annotations

import re

from compiler.ir import kernel_text
from compiler.passes.gpu.early_prefetch import MOST_BYTES, MOST_LINES, early_prefetch
from compiler.render import cuda
from compiler.targets.nvidia import SM_80, SM_90A

PROGRAM = """
def f(x: f32[64], w: f32[{size}], b: f32[64], other: f32[{other}], *, y: f32[64]):
    z: f32[64]
    with function("first", [x, z], writes=[z], grid=[1], block=[64, 1, 1]):
        call("mlc_wait_dependencies", [], writes=[])
        {first}
        z[thread.x] = -x[thread.x]
    with function("second", [z, w, b, y], writes=[y], grid=[{grid}], block=[64, 1, 1]):
        call("mlc_wait_dependencies", [], writes=[])
        y[thread.x] = {value}
"""
NEXT = 'call("mlc_launch_dependents", [], writes=[])'
SUM = "z[thread.x] + w[thread.x] + b[thread.x]"
CALL = re.compile(r'call\("mlc_prefetch_l2", \[\], (\w+) @ \(0\), (\d+)')


def prefetches(
    size: int = 64, grid: int = 1, first: str = NEXT, value: str = SUM, other: int = 1 << 24
) -> list[tuple[str, int]]:
    text = PROGRAM.format(size=size, grid=grid, first=first, value=value, other=other)
    program = kernel_text.parse("\n".join(line for line in text.splitlines() if line.strip()) + "\n")
    assert early_prefetch(program, SM_80) is program
    made = early_prefetch(program, SM_90A)
    assert early_prefetch(made, SM_90A) == made
    shown = kernel_text.show(made)
    assert shown.count("mlc_prefetch_l2") == len(CALL.findall(shown))
    assert "mlc_prefetch_l2" not in shown.partition('"second"')[0]
    return [(name, int(size)) for name, size in CALL.findall(shown)]


def test_inputs_are_asked_for_and_results_of_other_kernels_are_not() -> None:
    assert prefetches() == [("w", 256), ("b", 256)]


def test_a_kernel_that_starts_when_its_predecessor_has_ended_asks_for_nothing() -> None:
    assert prefetches(first="") == []


def test_inputs_that_fit_into_the_cache_together_may_be_there() -> None:
    assert prefetches(other=64) == []


def test_small_inputs_come_first_and_then_the_start_of_a_large_one() -> None:
    assert prefetches(1 << 24, 1 << 10) == [("b", 256), ("w", MOST_BYTES - 256)]
    assert prefetches(1 << 24, 2) == [("b", 256), ("w", 2 * 64 * MOST_LINES * 128 - 256)]


def test_rows_picked_by_an_index_are_not_the_first_ones() -> None:
    gathered = "z[thread.x] + w[require(thread.x < 64, thread.x)] + b[thread.x]"
    assert prefetches(1 << 24, 1 << 10, value=gathered) == [("b", 256)]


def test_what_a_kernel_before_writes_is_not_loaded_as_a_constant() -> None:
    text = PROGRAM.format(size=64, grid=1, first=NEXT, value=SUM, other=64)
    program = kernel_text.parse("\n".join(line for line in text.splitlines() if line.strip()) + "\n")
    shown = cuda.render(program, target="sm_90a")
    assert "const float* z" in shown and "const float* __restrict__ w" in shown
