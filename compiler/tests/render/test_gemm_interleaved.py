"""Products of interleaved bf16 and int8: exact on small integers, inside results, for all rests, on each machine."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import compiler
from compiler.execution import named
from compiler.targets import cpu
from compiler.targets.target import Target
from compiler.tests.cpp_library import MACHINES, build, call, seeded, stored
from compiler.tests.meaning import fresh_seed

PAIRING, TILING = (cpu.target((*cpu.AVX512.features, *needed)) for needed in (cpu.PAIRS, cpu.TILES))
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TEXT = """
template <typename E, typename C>
static void block_of(const E* a, const E* b, C* c, long m, long n, long k, long turned, long known) {
  constexpr int NR = 2 * mlc_width<float>;
  const long b_k = turned ? 1 : n + 3, b_n = turned ? k : 1;
  if (known)
    mlc_interleaved_block<3, NR, 2, 5>(m, n, k, a, k, 1, b, b_k, b_n, c, n + 2);
  else
    mlc_interleaved_block<3, NR, -1, -1>(m, n, k, a, k, 1, b, b_k, b_n, c, n + 2);
}
extern "C" void block(const mlc_bf16* a, const mlc_bf16* b, float* c, long m, long n, long k, long turned, long known) {
  block_of(a, b, c, m, n, k, turned, known);
}
extern "C" void bytes(
    const signed char* a, const signed char* b, int* c, long m, long n, long k, long turned, long known) {
  block_of(a, b, c, m, n, k, turned, known);
}
extern "C" void stored(
    const mlc_bf16* a, const mlc_bf16* b, mlc_bf16* c, long m, long n, long k, long turned, long known) {
  constexpr int NR = 2 * mlc_width<float>;
  const long b_k = turned ? 1 : n + 3, b_n = turned ? k : 1;
  if (known)
    mlc_interleaved_block_store<3, NR, 2, 5, 805>(m, n, k, a, k, 1, b, b_k, b_n, c, n + 2);
  else
    mlc_interleaved_block_store<3, NR, -1, -1, 805>(m, n, k, a, k, 1, b, b_k, b_n, c, n + 2);
}
extern "C" void dots(const mlc_bf16* a, const mlc_bf16* b, float* c, long m, long n, long k) {
  mlc_dot_block<3, 4, -1, -1>(m, n, k, a, k, 1, b, 1, k, c, n + 2);
}
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_blocks_are_exact_and_stay_inside(machine: str, tmp_path: Path) -> None:
    library = build(tmp_path, ["gemm_interleaved.h"], TEXT, machine)
    seed, rng = seeded()
    for m in (2, 5, 8):
        for n in (5, 133):
            for k in (1, 2, 31, 64, 805):
                a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n + 3))
                c = rng.integers(-9, 10, (m, n + 2)).astype(np.float32)
                expected = c.copy()
                expected[:, :n] += (a @ b[:, :n]).astype(np.float32)
                known = int(m % 3 == 2 and n % 128 == 5)
                for how in ("turned", "rows", "dots"):
                    got, right = c.copy(), stored(b if how == "rows" else b[:, :n].T)
                    if how == "dots":
                        call(library.dots, stored(a), right, got, m, n, k)
                    else:
                        call(library.block, stored(a), right, got, m, n, k, int(how == "turned"), known)
                    assert np.array_equal(got, expected), f"{how} on {machine}, {m} x {n} x {k}, seed {seed}"
                for turned in (0, 1):
                    a8, b8 = (rng.integers(-128, 128, x.shape, np.int8) for x in (a, b))
                    a8[0], b8[:, 0] = -128, -128
                    sums = c.astype(np.int32)
                    right = np.ascontiguousarray(b8[:, :n].T if turned else b8)
                    call(library.bytes, a8, right, sums, m, n, k, turned, known)
                    assert np.array_equal(sums[:, n:], c[:, n:]), f"bytes on {machine}, seed {seed}"
                    wanted = c[:, :n].astype(int) + a8.astype(int) @ b8[:, :n].astype(int)
                    assert np.array_equal(sums[:, :n], wanted), f"bytes on {machine}, seed {seed}"
                    rounded, beyond = stored(a @ b[:, :n]), np.full((m, 2), 7, np.uint16)
                    right, made = stored(b[:, :n].T if turned else b), np.full((m, n + 2), 7, np.uint16)
                    call(library.stored, stored(a), right, made, m, n, k, turned, known)
                    assert np.array_equal(made, np.hstack([rounded, beyond])), f"stored on {machine}, seed {seed}"


def test_only_a_target_that_has_the_instruction_takes_it() -> None:
    seed = fresh_seed()
    source = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-4, 5, shape, generator=source).bfloat16() for shape in ((33, 70), (70, 50)))
    captured = compiler.capture(torch.mm, [a, b]).program
    assert "mlc_interleaved_block" not in compiler.lower(captured, cpu.AVX512).stages["cpp"]
    lowering = compiler.lower(captured, PAIRING)
    assert "mlc_interleaved_block_store<" in lowering.stages["cpp"]
    for stage in ("tile", "kernel", *(["cpp"] if not named.missing(lowering.target) else [])):
        (made,) = compiler.execute(lowering, stage, [a, b])
        assert torch.equal(made, (a.double() @ b.double()).bfloat16()), f"{stage}, seed {seed}"
    assert compiler.accuracy(lowering).flushes


@pytest.mark.parametrize("machine", [PAIRING, TILING], ids=["pairs", "tiles"])
def test_what_is_flushed_is_within_the_bound(machine: Target) -> None:
    if named.missing(machine):
        pytest.skip("this machine has no such instruction")
    seed = fresh_seed()
    source = torch.Generator().manual_seed(seed)
    a = (torch.randn(17, 40, generator=source) * 1e-39).bfloat16()
    b = (torch.randn(40, 33, generator=source) * 1e30).bfloat16()
    lowering = compiler.lower(compiler.capture(torch.mm, [a, b]).program, machine)
    assert f"mlc_{'tile' if machine is TILING else 'interleaved'}_block_store<" in lowering.stages["cpp"]
    given = [x.float().numpy() for x in (a, b)]
    (found,) = compiler.bounds(lowering.stages["tensor"], given, compiler.accuracy(lowering))
    (made,) = compiler.execute(lowering, "cpp", [a, b])
    assert found.e1 is not None
    assert (np.abs(made.double().numpy() - found.v) <= found.e1 * 1.01).all(), f"seed {seed}"
