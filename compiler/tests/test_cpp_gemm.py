"""The matrix product micro-kernels against NumPy on integer-valued data, where every correct answer is exact."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from compiler.tests.cpp_library import CPP, MACHINES, NUMPY, Array, build, call, seeded, text

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# computed in, A and B in memory, rows and vectors of the block
BLOCKS = [("f32", "f32", "f32", 6, 2), ("f32", "f32", "f32", 1, 4), ("f32", "f32", "f32", 3, 1)]
BLOCKS += [("f64", "f64", "f64", 4, 3), ("f32", "f32", "bf16", 5, 2), ("f32", "f16", "f16", 2, 2)]

PANELS = """
extern "C" int width_NAME() { return mlc_width<LANE>; }
extern "C" void packed_NAME(const A_LANE* a, const B_LANE* b, LANE* c, long k, long b_row, long c_row, long add) {
  mlc_fma_panel<LANE, MR, NV>(k, a, MR, b, b_row, c, c_row, add);
}
extern "C" void rows_NAME(const A_LANE* a, const B_LANE* b, LANE* c, long k, long b_row, long c_row, long add) {
  mlc_fma_panel_rows<LANE, MR, NV>(k, a, k, b, b_row, c, c_row, add);
}
extern "C" void edge_NAME(
    const A_LANE* a, const B_LANE* b, LANE* c, long k, long b_row, long c_row, long columns, long add) {
  mlc_fma_panel_edge<LANE, MR, NV>(k, a, k, 1, b, b_row, c, c_row, columns, add);
}
extern "C" void dot_NAME(const A_LANE* a, const B_LANE* b, LANE* c, long k, long c_row, long c_column, long add) {
  mlc_dot_panel<LANE, MR, NV>(k, a, k, b, k, c, c_row, c_column, add);
}
extern "C" void gemv_NAME(const A_LANE* x, long x_k, const B_LANE* b, LANE* y, long n, long k, long b_row, long add) {
  mlc_gemv<LANE>(n, k, x, x_k, b, b_row, y, add);
}
extern "C" void pack_NAME(const A_LANE* a, LANE* rows, const B_LANE* b, LANE* columns, long n, long k, long b_row) {
  mlc_pack_rows<LANE, MR>(rows, a, k, MR - 1, k);
  mlc_pack_columns<LANE, NV * mlc_width<LANE>>(columns, b, b_row, n, k);
}
"""


def stored(x: Array, dtype: str) -> Array:
    """Small integers as memory of `dtype` holds them."""
    if dtype == "bf16":
        return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().view(torch.uint16).numpy()
    return np.ascontiguousarray(x.astype(NUMPY[dtype]))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: "-".join(map(str, block)))
def test_panels_are_exact_and_stay_inside(block: tuple[str, str, str, int, int], machine: str, tmp_path: Path) -> None:
    lane, a_type, b_type, mr, nv = block
    words = {"A_LANE": CPP[a_type], "B_LANE": CPP[b_type], "LANE": CPP[lane], "NAME": "block", "MR": str(mr)}
    library = build(tmp_path, ["gemm.h"], text(PANELS, NV=str(nv), **words), machine)
    seed, rng = seeded()
    w = library.width_block()
    full = nv * w
    for k in (1, 7, w, 3 * w + 1):
        a, b = rng.integers(-4, 5, (mr, k)), rng.integers(-4, 5, (k, full + 3))
        a_stored, b_stored = stored(a, a_type), stored(b, b_type)
        product = a @ b
        for add in (0, 1):
            c = rng.integers(-9, 10, (mr, full + 2)).astype(NUMPY[lane])

            def expect(columns: int, c: Array = c, add: int = add, product: Array = product) -> Array:
                out = c.copy()
                out[:, :columns] = add * c[:, :columns] + product[:, :columns]
                return out

            where = f"{block} on {machine}, k = {k}, accumulate = {add}, seed {seed}"
            got = c.copy()
            call(library.packed_block, stored(a.T, a_type), b_stored, got, k, full + 3, full + 2, add)
            assert np.array_equal(got, expect(full)), f"packed {where}"
            got = c.copy()
            call(library.rows_block, a_stored, b_stored, got, k, full + 3, full + 2, add)
            assert np.array_equal(got, expect(full)), f"rows {where}"
            for columns in {full - w + 1, full - w + w // 2, full}:
                got = c.copy()
                call(library.edge_block, a_stored, b_stored, got, k, full + 3, full + 2, columns, add)
                assert np.array_equal(got, expect(columns)), f"edge of {columns}, {where}"
            got = np.array(c[:, :nv], order="F")
            transposed = stored(b[:, :nv].T, b_type)
            call(library.dot_block, a_stored, transposed, got.T, k, 1, mr, add)
            assert np.array_equal(got, add * c[:, :nv] + product[:, :nv]), f"dot {where}"
            got = c[0].copy()
            call(library.gemv_block, stored(a.T, a_type), mr, b_stored, got, full + 1, k, full + 3, add)
            assert np.array_equal(got[:-1], add * c[0, :-1] + product[0, : full + 1]), f"gemv {where}"
            assert got[-1] == c[0, -1], f"gemv wrote past its end, {where}"
        rows, columns = np.full((k, mr), 9, NUMPY[lane]), np.full((k, full), 9, NUMPY[lane])
        call(library.pack_block, a_stored, rows, b_stored, columns, full - 1, k, full + 3)
        assert np.array_equal(rows[:, : mr - 1], a.T[:, : mr - 1]), f"pack rows {block} on {machine}, seed {seed}"
        assert not rows[:, mr - 1].any(), f"pack rows pads with zeros: {block} on {machine}, seed {seed}"
        assert np.array_equal(columns[:, :-1], b[:, : full - 1]), f"pack columns {block} on {machine}, seed {seed}"
        assert not columns[:, -1].any(), f"pack columns pads with zeros: {block} on {machine}, seed {seed}"
