"""Device functions that are no rows: what they compute on the CPU, and what they refuse that a GPU cannot do."""

import numpy as np
import pytest

from compiler.checks.instructions.functions import functions
from compiler.checks.instructions.tensor import kernel
from compiler.checks.instructions.trial import HEADERS, judge, plan, poisoned, source
from compiler.runtime.emulator import emulator
from compiler.runtime.launches import Buffer, Launch, LaunchPlan, Map
from compiler.tests.meaning import fresh_seed


@pytest.mark.parametrize("check", [False, True], ids=["fast", "check"])
def test_functions(check: bool) -> None:
    """All in one text, in an order of threads of their own each time."""
    seed = fresh_seed()
    print(f"seed {seed}")
    trials = [trial for _, _, trial in functions(seed)]
    path = emulator.build(source(trials), (HEADERS,), check)
    for trial in trials:
        outputs = poisoned(trial)
        arrays = [*(a for _, a in trial.inputs), *outputs]
        outcome = emulator.run(path, plan(trial), arrays, check, seed=seed % 1000)
        assert outcome.complete and not outcome.reports, outcome.reports
        judge(trial, outputs)


# A body over x (f32[64, 64]), out (f32[64, 64]), m (a map of x, boxes of 8 x 32) and memory; what is said of it.
REFUSED = {
    "a box that begins amid 16 bytes": (
        "mlc_tma_store(m, memory, 2l, 0l);",
        "a box begins amid 16 bytes along the innermost axis",
    ),
    "a store before the tensor": ("mlc_tma_store(m, memory, 0l, -1l);", "before the beginning of an axis"),
    "a map of two axes, three coordinates": (
        "mlc_tma_store(m, memory, 0l, 0l, 0l);",
        "as many coordinates as it has axes",
    ),
    "a tile that is not aligned to its swizzle": ("mlc_tma_store(m, memory + 128, 0l, 0l);", "8 times its span"),
    "a bulk copy of 20 bytes": ("mlc_bulk_store(out, memory, 20);", "multiples of 16"),
    "rows of ldmatrix amid 16 bytes": (
        "float r[4];\nmlc_ldmatrix<4>(r, memory + 4 * t);\nout[t] = r[0];",
        "not at a multiple of 16 bytes",
    ),
    "a wide load amid 16 bytes": ("mlc_load_once<16>(out + 4 * t, x + 4 * t + 1);", "not at a multiple of its size"),
    "four floats added amid 16 bytes": ("mlc_red_add4(out + 1, x);", "at a multiple of 16 bytes"),
    "threads that multiply different tiles": (
        "float acc[4];\nmlc_wgmma_fence<4>(acc);\n"
        "mlc_wgmma<8, mlc_bf16, mlc_mk, 32, mlc_nk, 32>(acc, memory, 0, memory + 256 * (t / 64), 0, 0);",
        "threads of the warpgroup name different operands",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_gpu_cannot_do_is_said(what: str) -> None:
    body, reason = REFUSED[what]
    params = ("const float* __restrict__ x", "float* __restrict__ out", "MLC_TENSOR_MAP(m)")
    text = kernel("wrong", 128, params, ["MLC_DYNAMIC_SHARED(memory);", *body.splitlines()])
    includes = ("prelude", "tma", "matrix", "wgmma", "streaming", "atomics")
    headers = "".join(f'#include "mlc/{name}.cuh"\n' for name in includes)
    path = emulator.build(headers + text, (HEADERS,))
    x, out = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    tensor_map = Map(0, "f32", (64, 64), (4, 256), (32, 8), 128)
    launch = Launch("wrong", (1, 1, 1), (128, 1, 1), (0, 1, tensor_map), shared=16384)
    program = LaunchPlan((Buffer("x", x.nbytes),), (Buffer("out", out.nbytes),), (launch,))
    outcome = emulator.run(path, program, [x, out])
    assert not outcome.complete
    assert any(reason in str(report) for report in outcome.reports), outcome.reports
