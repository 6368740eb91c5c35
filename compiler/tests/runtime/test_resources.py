"""What ptxas reports and what the machine code holds: on real kernels, compiled here, that do it right and wrong."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from compiler.execution.gpu_programs import HEADERS
from compiler.runtime import cubin, resources, sass
from compiler.runtime.cubin import Cubin, build_cubin
from compiler.runtime.resources import Contract, Usage

CHOICE = """\
#include "mlc/memory.cuh"
extern "C" __global__ void choice(const double* __restrict__ x, double* __restrict__ y, double* __restrict__ z) {
  const int i = threadIdx.x;
  for (int k = 0; k < 2; k++) y[i * 2 + k] = x[i * 2 + k] + 1.0;
  for (int k = 0; k < 2; k++)
    for (int l = 0; l < 2; l++)
      z[i * 4 + k * 2 + l] = i < 3 ? x[l * 6 + k * 3 + i] : k == l ? mlc_reread(&y[i * 2 + k]) : 0.0;
}
"""
COPY = """\
extern "C" __global__ void __launch_bounds__(256) wide(const float4* __restrict__ x, float4* __restrict__ y) {
  y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(256) narrow(const float* __restrict__ x, float* __restrict__ y) {
  y[threadIdx.x] = x[threadIdx.x];
}
"""
SUM = """\
extern "C" __global__ void __launch_bounds__(256) sum(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float part[256];
  part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    float s = 0.0f;
    for (int i = 0; i < 256; i++) s += part[i];
    *y = s;
  }
}
"""
# 96 values of 1024 threads, twice: 32 registers for each thread.
SPILL = """\
extern "C" __global__ void __launch_bounds__(1024, 2) spill(const float* x, float* y, int m) {
  float t[96];
#pragma unroll
  for (int i = 0; i < 96; i++) t[i] = x[threadIdx.x + i * 1024];
  for (int k = 0; k < m; k++) {
#pragma unroll
    for (int i = 0; i < 96; i++) t[i] = t[i] * t[(i + 1) % 96] + x[k];
  }
#pragma unroll
  for (int i = 0; i < 96; i++) y[threadIdx.x + i * 1024] = t[i];
}
"""
INDEXED = """\
extern "C" __global__ void indexed(const int* x, float* y) {
  float t[64];
  for (int i = 0; i < 64; i++) t[i] = y[i];
  float s = 0.0f;
  for (int i = 0; i < 64; i++) s += t[x[i] & 63];
  y[0] = s;
}
"""
# Without a bound on registers at entry, ptxas ignores setmaxnreg.
SETMAXNREG = """\
extern "C" __global__ void early(float* x) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  x[threadIdx.x] *= 2.0f;
}
"""


def made(text: str, arch: str = "sm_90a") -> Cubin:
    if cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None:
        pytest.skip("no CUDA compiler")
    return build_cubin(text, arch, include=(HEADERS,))


def counted(text: str) -> Mapping[str, sass.Counts]:
    if sass.disassembler() is None:
        pytest.skip("no disassembler: pip install nvidia-cuda-cuobjdump")
    return resources.inspect(made(text)).opcodes


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_usage_of_a_real_kernel(arch: str) -> None:
    (use,) = resources.usage(made(SUM, arch).log)
    assert (use.kernel, use.shared, use.barriers) == ("sum", 1024, 1)
    assert 8 <= use.registers <= 64 and use.stack == use.spill_stores == use.spill_loads == 0
    assert resources.complaints(made(SUM, arch).log) == ()


def test_usage_lists_every_kernel() -> None:
    assert [u.kernel for u in resources.usage(made(COPY).log)] == ["narrow", "wide"]


def test_spills_are_told() -> None:
    (use,) = resources.usage(made(SPILL).log)
    assert use.registers == 32 and use.spill_stores > 0 and use.spill_loads > 0
    (said,) = resources.complaints(made(SPILL).log)
    assert said.startswith("spill: 32 registers, spills")


def test_local_memory_is_told() -> None:
    (use,) = resources.usage(made(INDEXED).log)
    assert use.stack == 256 and use.spill_stores == 0
    (said,) = resources.complaints(made(INDEXED).log)
    assert said.startswith("indexed: 256 bytes of local memory")


def test_an_ignored_instruction_is_told() -> None:
    (said,) = resources.complaints(made(SETMAXNREG).log)
    assert "C7508" in said and "setmaxnreg" in said


def test_the_older_wording_of_ptxas() -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_80'\nptxas info    : Function properties for k\n"
        "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 16 barriers, 8 bytes cumulative stack size, 49152 bytes smem, "
        "400 bytes cmem[0]\n"
    )
    assert resources.usage(log) == (Usage("k", 255, 8, 4, 12, 49152, 16),)
    assert resources.usage("ptxas info    : 0 bytes gmem\n") == ()
    with pytest.raises(ValueError, match="no report of ptxas -v on kernel k"):
        resources.usage(log.splitlines()[0])


@pytest.mark.parametrize("code", ["C7508", "C7510", "C7511", "C7515", "C7517", "C7519"])
def test_serialisation_is_told(code: str) -> None:
    line = f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert resources.slowdown_messages(f"a\n{line}\n{line}\n") == (line,)
    assert resources.slowdown_messages("ptxas info    : (C7520) something else\n") == ()


def test_opcodes_of_real_machine_code() -> None:
    counts = counted(COPY)
    assert set(counts) == {"wide", "narrow"}
    assert sass.total(counts["wide"], "LDG") == sass.total(counts["wide"], "STG") == 1
    assert sass.wide_share(counts["wide"]) == 1.0 and sass.wide_share(counts["narrow"]) == 0.0
    assert sass.total(counted(SUM)["sum"], "BAR") == 1
    assert sass.total(counted(SPILL)["spill"], "LDL") > 0


def test_what_a_kernel_has_stored_is_not_read_as_what_nobody_writes() -> None:
    """By `ld.global.nc`, CONSTANT in machine code; NVCC 13.0 takes that where the choice is between plain loads."""
    found = [opcode for opcode in counted(CHOICE)["choice"] if opcode.startswith("LDG")]
    assert any("STRONG" in opcode for opcode in found), found


def test_a_contract_on_real_machine_code() -> None:
    counts = counted(COPY)
    agreed = resources.contract("pointwise", "sm_90a", "f32")
    assert resources.breaches(agreed, counts["wide"]) == ()
    (said,) = resources.breaches(agreed, counts["narrow"])
    assert said.startswith("only 0% of its accesses to global memory are 16 bytes wide") and "1 STG.E" in said
    report = resources.inspect(made(COPY), {"narrow": agreed, "wide": agreed})
    assert report.complaints == (f"narrow: {said}",)


BOTH_DISASSEMBLERS = [
    "\t\tFunction : k\n        /*0000*/                   LDC R1, c[0x0][0x28] ;    /* 0x00 */\n"
    "        /*06f0*/              @!P0 HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24, UP0 ;\n"
    "        /*0700*/              @UP1 UTMALDG.2D [UR8], [UR4] ;\n",
    "//--------------------- .text.k --------------------------\n\t.section\t.text.k,\"ax\",@progbits\n.text.k:\n"
    "        /*0000*/                   LDC R1, c[0x0][0x28] ;\n"
    "        /*06f0*/              @!P0 HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24, UP0 ;\n"
    "        /*10700*/             @UP1 UTMALDG.2D [UR8], [UR4] ;\n",
]  # fmt: skip


@pytest.mark.parametrize("text", BOTH_DISASSEMBLERS, ids=["cuobjdump", "nvdisasm"])
def test_both_disassemblers_are_read(text: str) -> None:
    assert sass.opcodes(text) == {"k": {"LDC": 1, "HGMMA.64x256x16.F32.BF16": 1, "UTMALDG.2D": 1}}


def test_matrix_products_show_the_instruction_of_the_architecture() -> None:
    new, old = (resources.contract("contraction", arch, "bf16") for arch in ("sm_90a", "sm_80"))
    assert new == Contract(("HGMMA",), ("HMMA",)) and old == Contract(("HMMA",))
    assert resources.breaches(new, {"HMMA.16816.F32.BF16": 4}) == ("has no HGMMA", "has 4 HMMA")
    assert resources.breaches(old, {"HMMA.16816.F32.BF16": 4}) == ()
    assert resources.contract("contraction", "sm_90a", "f64") == Contract(("DMMA",))
    assert resources.contract("contraction", "sm_90a", "f32") == Contract()
    with pytest.raises(KeyError, match="no family 'magic'; there are pointwise"):
        resources.contract("magic", "sm_80", "f32")


def test_a_damaged_cubin_is_told(tmp_path: Path) -> None:
    if sass.disassembler() is None:
        pytest.skip("no disassembler: pip install nvidia-cuda-cuobjdump")
    (tmp_path / "k.cubin").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"cannot read .*k\.cubin"):
        sass.disassemble(tmp_path / "k.cubin")
