"""Kernels without loops inside their rows: how many neighbours a thread of a GPU takes side by side."""

from __future__ import annotations

import pytest

from compiler.ir import loop_text
from compiler.schedule import heuristic
from compiler.schedule.steps import Bind, Schedule
from compiler.targets import nvidia

PROGRAM = """
def f(x: f32[{}], *, y: bf16[{}]):
    with kernel("cast", [x, y], writes=[y]):
        for i in parallel(64):
            for j in parallel(48):
                for k in parallel(3):
                    for l in parallel(3):
                        y[i, j, k, l] = bf16(x[i, j, k, l])
"""


def neighbours(schedule: Schedule) -> list[int]:
    lanes = [dict(s.args) for s in schedule.steps if isinstance(s, Bind) and s.level == "lanes"]
    return [args.get("vector", 1) for args in lanes]


@pytest.mark.parametrize(
    ("apart", "count"), [("64, 48, 3, 3", 4), ("64: 864, 48: 18, 3: 3, 3: 1", 1)], ids=["one run", "short runs"]
)
def test_short_last_axes_that_lie_in_one_run_are_vectors(apart: str, count: int) -> None:
    (kernel,) = loop_text.parse(PROGRAM.format(apart, "64, 48, 3, 3")).kernels
    assert neighbours(heuristic.choose(kernel, (), nvidia.SM_90A)) == [count]
