"""Planted faults that the interpreter of a stage refuses by itself: all results are right, or would be.

They read, write or leave out what does not matter, such as factors of elements of z, which are 0. So no comparison of
results would find them, and where the check can be bypassed, the same program runs and its results are right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from compiler.interpret import grid, kernel, loop, tensor, tile, tile_state
from compiler.interpret.grid import InterpretError
from compiler.ir import dtype as dt
from compiler.ir.stages import IRS

RUN: dict[str, Callable[..., Any]] = {"tensor": tensor.run, "loop": loop.run, "tile": tile.run, "kernel": kernel.run}
SIGNATURE = "x: T[8], z: T[8], *, y: T[8]"
LOCAL = "t = local(T[8])"
# A program of each stage around the lines of a fault.
PROGRAMS = {
    "tensor": "def f(x: T[8], z: T[8]):\n    with kernel('f'):\n        {}\n    result(y, T[8])\n",
    "loop": f"def f({SIGNATURE}):\n    with kernel('f', [x, z, y], writes=[y]):\n        {{}}\n",
    "tile": f"def f({SIGNATURE}):\n    with kernel('f', [x, z, y], writes=[y]):\n        {LOCAL}\n        {{}}\n",
    "kernel": f"def f({SIGNATURE}):\n    with function('f', [x, z, y], writes=[y]):\n        {{}}\n",
}
LOOP = {
    "loop": "for i in parallel(8):\n    ",
    "tile": "for i in blocks(8):\n    ",
    "kernel": "for i in range(0, 8, 1):\n    ",
}
BEHIND, BEFORE, UNWRITTEN, STORED, MISSING = (
    "read behind an input", "read before an input", "read what was never written", "stored behind an output",
    "an output that is not complete",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """The lines of a program of a stage, and what its interpreter says; `off` bypasses the check, if that is simple."""

    stage: str
    name: str
    lines: str
    said: str
    off: Callable[[pytest.MonkeyPatch], None] | None = None


def _no_bounds(patch: pytest.MonkeyPatch) -> None:
    for module in (grid, tensor, tile):
        if hasattr(module, "raise_out_of_bounds"):
            patch.setattr(module, "raise_out_of_bounds", lambda *_: None)


def _no_violations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "PRELUDE", loop.PRELUDE.replace("violation[5] = 1;", "violation[5] = 0;"))


def _no_unwritten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tile_state.Checked, "take", lambda self, load, stored, takes, grid: np.nan_to_num(takes[0](stored)))


LOADS = {BEHIND: "x[i + 1]", BEFORE: "x[i - 1]"}
AT = {BEHIND: 8, BEFORE: -1}
FAULTS = (
    *(
        Fault("tensor", name, f"y[i: 8]: T = x[i] + z[i] * {load}", f"reads element {AT[name]} along", _no_bounds)
        for name, load in LOADS.items()
    ),
    *(
        Fault("loop", name, f"y[i] = x[i] + z[i] * {load}", f"loads element {AT[name]} of x", _no_violations)
        for name, load in LOADS.items()
    ),
    *(
        Fault("tile", name, f"y[i] = x[i] + z[i] * {load}", f"reads element {AT[name]} along", _no_bounds)
        for name, load in LOADS.items()
    ),
    *(
        Fault("kernel", name, f"y[i] = x[i] + z[i] * {load}", f"loads element {AT[name]} of x, which has 8")
        for name, load in LOADS.items()
    ),
    Fault("loop", STORED, "y[i] = x[i]\n    if i == 7:\n        y[i + 1] = x[i]", "stores to element 8 of y"),
    Fault("tile", STORED, "y[i] = x[i]\n    if i == 7:\n        y[i + 1] = x[i]", "stores to element 8 along"),
    Fault(
        "kernel", STORED, "y[i] = x[i]\n    if i == 7:\n        y[i + 1] = x[i]", "stores element 8 of y, which has 8"
    ),
    Fault("tile", UNWRITTEN, "y[i] = x[i] + z[i] * t[i]", "reads an element of t before it is written", _no_unwritten),
    Fault("kernel", UNWRITTEN, "y[i] = x[i] + z[i] * y[i]", "loads element 0 of y, which was never written"),
    Fault("tile", MISSING, "if i < 7:\n        y[i] = x[i]", "element [7] of output y was never written"),
    Fault("kernel", MISSING, "if i < 7:\n        y[i] = x[i]", "element [7] of output y was never written"),
)


def run(fault: Fault, dtype: dt.DType, x: np.ndarray) -> np.ndarray:
    """The result of the program of a fault on x."""
    ir, start = IRS[fault.stage], LOOP.get(fault.stage, "")
    lines = (start + fault.lines).replace("\n", "\n        ")
    program = ir.parse(PROGRAMS[fault.stage].format(lines).replace("T", dtype.name))
    ir.verify(program)
    (y,) = RUN[fault.stage](program, [x, np.zeros_like(x)])
    return np.asarray(y)


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.stage}: {fault.name}" for fault in FAULTS])
def test_a_fault_whose_results_are_right_is_refused(fault: Fault, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    for name in ("f32", draw.choice(("i64", "i32", "i16", "i8"))):
        dtype = dt.DTYPES[name]
        x = np.array(
            [draw.randrange(1, 100) for _ in range(8)], np.float32 if dtype.is_float else name.replace("i", "int")
        )
        with pytest.raises(InterpretError) as refusal:
            run(fault, dtype, x)
        assert fault.said in str(refusal.value), (seed, name, str(refusal.value))
        if fault.off is not None:
            with monkeypatch.context() as patch:
                fault.off(patch)
                assert np.array_equal(run(fault, dtype, x), x), (seed, name)
