"""Products in tile registers, emulated where there are none: exact on small integers, inside results, for any sizes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.execution import named
from compiler.schedule.space.cpu.blocking import Matmul, Operand, space
from compiler.targets import cpu
from compiler.tests.cpp_library import MACHINES, build, call, seeded, stored
from compiler.tests.meaning import fresh_seed

TILING = cpu.target((*cpu.AVX512.features, *cpu.TILES))
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TEXT = """
template <typename E, typename C>
static void block_of(const E* a, const E* b, C* c, long m, long n, long k, long turned) {
  mlc_tile_block<32, 32, -1, -1>(m, n, k, a, k, 1, b, turned ? 1 : n + 3, turned ? k : 1, c, n + 2);
}
extern "C" void block(const mlc_bf16* a, const mlc_bf16* b, float* c, long m, long n, long k, long turned) {
  block_of(a, b, c, m, n, k, turned);
}
extern "C" void bytes(const signed char* a, const signed char* b, int* c, long m, long n, long k, long turned) {
  block_of(a, b, c, m, n, k, turned);
}
extern "C" void stored(const mlc_bf16* a, const mlc_bf16* b, mlc_bf16* c, long m, long n, long k, long turned) {
  mlc_tile_block_store<32, 32, -1, -1, 4100>(m, n, k, a, k, 1, b, turned ? 1 : n + 3, turned ? k : 1, c, n + 2);
}
"""
SIZES = (
    (1, 5, 1),
    (5, 17, 31),
    (16, 32, 32),
    (17, 133, 64),
    (33, 40, 805),
    (300, 16, 2),
    (50, 301, 1300),
    (40, 70, 4100),
)


@pytest.mark.parametrize("machine", MACHINES)
def test_blocks_are_exact_and_stay_inside(machine: str, tmp_path: Path) -> None:
    library = build(tmp_path, ["gemm_tiles.h"], TEXT, machine)
    seed, rng = seeded()
    for m, n, k in SIZES:
        for turned in (0, 1):
            about = f"{machine}, {m} x {n} x {k}, turned {turned}, seed {seed}"
            a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n + 3))
            right = stored(b[:, :n].T if turned else b)
            c = rng.integers(-9, 10, (m, n + 2)).astype(np.float32)
            got, expected = c.copy(), c.copy()
            expected[:, :n] += a @ b[:, :n]
            call(library.block, stored(a), right, got, m, n, k, turned)
            assert np.array_equal(got, expected), about
            rounded = np.full((m, n + 2), 7, np.uint16)
            call(library.stored, stored(a), right, rounded, m, n, k, turned)
            assert np.array_equal(rounded[:, :n], stored(a @ b[:, :n])), f"stored, {about}"
            assert (rounded[:, n:] == 7).all(), f"stored, {about}"
            a, b = (rng.integers(-128, 128, x.shape, np.int8) for x in (a, b))
            a[0], b[:, 0] = -128, -128
            got, expected = c.astype(np.int32), c.astype(np.int32)
            expected[:, :n] += a.astype(np.int32) @ b[:, :n].astype(np.int32)
            call(library.bytes, a, np.ascontiguousarray(b[:, :n].T) if turned else b, got, m, n, k, turned)
            assert np.array_equal(got, expected), f"bytes, {about}"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_a_target_with_tile_registers_takes_them(turned: bool, added: bool) -> None:
    seed = fresh_seed()
    source = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randint(-4, 5, s, generator=source).bfloat16() for s in ((33, 70), (70, 50), (50,)))
    b = b.t().contiguous().t() if turned else b

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ b + c) if added else a @ b

    captured = compiler.capture(product, [a, b, c]).program
    lowering = compiler.lower(captured, TILING)
    assert f"mlc_tile_block{'' if added else '_store'}<" in lowering.stages["cpp"]
    for stage in ("tile", "kernel", *(["cpp"] if not named.missing(TILING) else [])):
        (made,) = compiler.execute(lowering, stage, [a, b, c])
        expected = product(*(x.double() for x in (a, b, c))).bfloat16()
        assert torch.equal(made, expected), f"{stage}, seed {seed}"
    assert compiler.accuracy(lowering).flushes


def test_few_rows_are_not_worth_tiles() -> None:
    rows = Operand(True, "k", 2, False)
    for m, function in ((1, "mlc_dot_block"), (16, "mlc_tile_block"), (512, "mlc_tile_block")):
        first = space(Matmul(m, 2048, 2048, 1, rows, rows, "f32", 4, "bf16", 2), TILING)[0]
        assert first.row.function == function, m


@pytest.mark.parametrize("causal", [False, True])
def test_attention_takes_tile_registers(causal: bool) -> None:
    """Weights stay in bf16 and are the right factor; keys are read in place, values turned."""
    seed = fresh_seed()
    source = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, n, 40, generator=source).bfloat16() for n in (70, 90, 90))

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    lowering = compiler.lower(compiler.capture(attention, [q, k, v]).program, TILING)
    assert lowering.stages["cpp"].count("mlc_tile_block<") == 2
    assert "narrow=True" in lowering.stages["cpp"]
    given = [x.float().numpy() for x in (q, k, v)]
    (found,) = compiler.bounds(lowering.stages["tensor"], given, compiler.accuracy(lowering))
    assert found.e1 is not None
    for stage in ("tile", "kernel", *(["cpp"] if not named.missing(TILING) else [])):
        (made,) = compiler.execute(lowering, stage, [q, k, v])
        error = np.abs(made.double().numpy() - found.v.reshape(made.shape))
        assert (error <= found.e1.reshape(made.shape) * 4).all(), f"{stage}, seed {seed}"
