"""What the C++ device headers let data be, lane by lane at every width: who passes, and who is told to the caller."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from compiler.ir import kernel_text
from compiler.render import cpp
from compiler.tests.cpp_library import CPP, MACHINES, NUMPY, build, call, integers, seeded, text

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# Of each N lanes: what comes of them, and whether any of them failed.
REQUIRE = """
template <int N>
void NAME(const TYPE* x, TYPE* y, int* failed, long count, [[maybe_unused]] TYPE limit) {
  for (long i = 0; i < count; i += N) {
    mlc_failures failures;
    const mlc_vec<TYPE, N> v = mlc_load<TYPE, N>(x + i);
    failed[i / N] = 0;
    mlc_store(y + i, CALL);
    mlc_tell_failures(failed + i / N, failures);
  }
}
"""
WIDTH = """
extern "C" void NAME_WIDTH(const TYPE* x, TYPE* y, int* failed, long count, long limit) {
  NAME<WIDTH>(x, y, failed, count, limit);
}
"""
WIDTHS = (1, 2, 4, 8, 16, 32)
CALLS = {
    "below": "mlc_require_below(failures, v, mlc_broadcast<TYPE, N>(limit))",
    "each_below": "mlc_each_outside(v, mlc_broadcast<TYPE, N>(limit)) ? "
    "(mlc_fail(failed + i / N), mlc_vec<TYPE, N>{}) : v",
    "nonzero": "mlc_require_nonzero(failures, v)",
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["i64", "i32", "i16"])
def test_what_is_required_of_integers(dtype: str, machine: str, tmp_path: Path) -> None:
    body = "".join(
        text(REQUIRE, CALL=called, NAME=name) + "".join(text(WIDTH, NAME=name, WIDTH=str(width)) for width in WIDTHS)
        for name, called in CALLS.items()
    ).replace("TYPE", CPP[dtype])
    library = build(tmp_path, ["vector.h", "require.h", "memory.h"], body, machine)
    seed, rng = seeded()
    for limit in (0, 1, 100, np.iinfo(NUMPY[dtype]).max):
        edges = [0, limit - 1, limit, min(limit, np.iinfo(NUMPY[dtype]).max - 1) + 1, -1, np.iinfo(NUMPY[dtype]).min]
        wild = rng.choice(np.concatenate([integers(dtype, rng)[:50], np.array(edges, NUMPY[dtype])]), 1024)
        tame = rng.integers(0, max(limit, 1), 4096, NUMPY[dtype])
        x = np.where(rng.random(4096) < 0.02, np.resize(wild, 4096), tame).astype(NUMPY[dtype])
        for name in CALLS:
            fine = (x >= 0) & (x < limit) if name != "nonzero" else x != 0
            for width in WIDTHS:
                y, failed = np.empty_like(x), np.full(x.size // width, 7, np.int32)
                call(library[f"{name}_{width}"], x, y, failed, x.size, limit)
                where = f"{name} {limit}, {width} lanes of {dtype} on {machine}, seed {seed}"
                good = fine.reshape(-1, width).all(1)
                assert np.array_equal(failed != 0, ~good), where
                kept = np.repeat(good, width)
                assert np.array_equal(y[kept], x[kept]), where
                assert ((y >= 0) & (y < max(limit, 1)) | (name == "nonzero"))[~kept].all(), where


TWO = """def f(x: f32[10], i: i64[64], *, y: f32[64], z: f32[64], w: f32[64]):
    with function("first", [x, i, y, z], writes=[y, z]):
        for j in range(0, 64, 1, parallel):
            checked: i64 = require((i[j] >= 0) & (i[j] < 10), i[j])
            y[j] = x[checked]
        for j in range(0, 64, 1, parallel):
            z[j] = y[j]
    with function("second", [z, w], writes=[w]):
        for j in range(0, 64, 1):
            w[j] = z[j]
"""


def test_nothing_runs_behind_what_was_left_for_an_index() -> None:
    made = cpp.render(kernel_text.parse(TWO), target="cpu")
    first, second = (made.index(f"static void {name}(") for name in ("first", "second"))
    assert made.count("if (mlc_any_outside(i[j], 10l)) return mlc_fail(failed);") == 1
    assert made[first:second].count("  if (*failed) return;\n  mlc_parallel(") == 1
    assert "  first(x, i, y, z, &failed, threads);\n  if (failed) return failed;\n  second(z, w);\n" in made
    assert "mlc_failures" not in made
