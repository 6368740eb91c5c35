"""The matmul blocks against NumPy on integer-valued data, where every correct answer is exact."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.tests.cpp_library import CPP, MACHINES, NUMPY, Array, build, call, seeded, text

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# computed in, A and B in memory, rows and columns (vectors of them, for a panel) of a block
BLOCKS = [("f32", "f32", "f32", 6, 2), ("f32", "f32", "f32", 1, 4), ("f32", "f32", "f32", 3, 1)]
BLOCKS += [
    ("f32", "f32", "f32", 4, 6),
    ("f64", "f64", "f64", 4, 3),
    ("f32", "f32", "bf16", 5, 2),
    ("f32", "f16", "f16", 2, 2),
]

# LEFT columns are known in one instance and not in the other, as are the rows.
TEXT = """
extern "C" int width_NAME() { return mlc_width<LANE>; }
extern "C" void panel_NAME(const A_LANE* a, long a_m, long a_k, const B_LANE* b, LANE* c, long m, long n, long k,
                           long left) {
  constexpr int NR = NV * mlc_width<LANE>;
  if (left)
    mlc_fma_block<MR, NR, MR - 1, LEFT>(m, n, k, a, a_m, a_k, b, n + 3, 1, c, n + 2);
  else
    mlc_fma_block<MR, NR, -1, -1>(m, n, k, a, a_m, a_k, b, n + 3, 1, c, n + 2);
}
extern "C" void dot_NAME(const A_LANE* a, const B_LANE* b, LANE* c, long m, long n, long k, long left) {
  if (left == 2)
    mlc_dot_block<MR, NV, MR - 1, NV, 64>(m, n, k, a, k, 1, b, 1, k, c, n + 2);
  else if (left)
    mlc_dot_block<MR, NV, MR - 1, NV - 1>(m, n, k, a, k, 1, b, 1, k, c, n + 2);
  else
    mlc_dot_block<MR, NV, -1, -1>(m, n, k, a, k, 1, b, 1, k, c, n + 2);
}
"""


def stored(x: Array, dtype: str) -> Array:
    """Small integers as memory of `dtype` holds them."""
    if dtype == "bf16":
        return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().view(torch.uint16).numpy()
    return np.ascontiguousarray(x.astype(NUMPY[dtype]))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: "-".join(map(str, block)))
def test_blocks_are_exact_and_stay_inside(block: tuple[str, str, str, int, int], machine: str, tmp_path: Path) -> None:
    lane, a_type, b_type, mr, nv = block
    words = {"A_LANE": CPP[a_type], "B_LANE": CPP[b_type], "LANE": CPP[lane], "NAME": "block", "MR": str(mr)}
    library = build(tmp_path, ["gemm.h"], text(TEXT, NV=str(nv), LEFT="3", **words), machine)
    seed, rng = seeded()
    w = library.width_block()

    def check(how: str, m: int, n: int, k: int, known: int) -> None:
        a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n + 3))
        c = rng.integers(-9, 10, (m, n + 2)).astype(NUMPY[lane])
        got, expected = c.copy(), c.copy()
        expected[:, :n] += (a @ b[:, :n]).astype(c.dtype)
        right = stored(b if how != "dot" else b[:, :n].T, b_type)
        match how:
            case "rows":
                call(library.panel_block, stored(a, a_type), k, 1, right, got, m, n, k, known)
            case "columns":
                call(library.panel_block, stored(a.T, a_type), 1, m, right, got, m, n, k, known)
            case "dot":
                call(library.dot_block, stored(a, a_type), right, got, m, n, k, known)
        rests = ("unknown", "known", "done in whole blocks")[known]
        said = f"{how} of {block} on {machine}, {m} x {n} x {k}, rests {rests}, seed {seed}"
        assert np.array_equal(got, expected), said

    for k in (1, 7, w, 3 * w + 1):
        for m in (mr, 3 * mr, mr - 1, 3 * mr - 1):
            for blocks in (0, 2):
                for how, wide, left in (("rows", nv * w, 3), ("columns", nv * w, 3), ("dot", nv, nv - 1)):
                    check(how, m, blocks * wide + left, k, 1)
                check("dot", m, blocks * nv + nv + nv // 2, 64 * k, 2)
        check("rows", 2 * mr + 1, nv * w + w // 2, k, 0)
        check("dot", 2 * mr + 1, 2 * nv + 1, k, 0)
