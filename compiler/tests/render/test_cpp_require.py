"""What the C++ device headers let data be, lane by lane at every width: who passes, and who is told to the caller."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from compiler.tests.cpp_library import CPP, MACHINES, NUMPY, build, call, integers, seeded, text

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# Of each N lanes: what comes of them, and whether any of them failed.
REQUIRE = """
template <int N>
void NAME(const TYPE* x, TYPE* y, int* failed, long count, [[maybe_unused]] TYPE limit) {
  for (long i = 0; i < count; i += N) {
    mlc_failures failures;
    const mlc_vec<TYPE, N> v = mlc_load<TYPE, N>(x + i);
    mlc_store(y + i, CALL);
    failed[i / N] = 0;
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
    "each_below": "mlc_require_each_below(failures, v, mlc_broadcast<TYPE, N>(limit))",
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
