"""Kernels written by hand as a compiler should write them: exact on the CPU, clean under its checks, good machine code.

The second half of each is what the lowering of a contraction is held to: no spills, no serialised tensor instructions,
and the instructions of its family.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from compiler.checks.instructions.trial import HEADERS, Trial, judge, plan, poisoned, to_stored
from compiler.interpret.scalar import Array, round_bf16
from compiler.ir.dtype import bf16
from compiler.runtime import arrays, cubin, device, resources, sass
from compiler.runtime.emulator import emulator
from compiler.runtime.launches import Extent, Launch, Map, Size
from compiler.tests.meaning import fresh_seed

KERNELS = Path(__file__).parent / "cuda_kernels"
Shape = tuple[int, int, int]
# Tiles are 128 x 128 or 128 x 256 with 64 along k: less than one, some with edges everywhere, whole ones.
SHAPES: tuple[Shape, ...] = ((40, 24, 32), (200, 264, 160), (256, 512, 192))


@dataclass(frozen=True)
class Kernel:
    """A product in bf16 by `file`, for these architectures, and what its machine code must have."""

    file: str
    architectures: tuple[str, ...]
    needs: tuple[str, ...]
    forbids: tuple[str, ...]

    def launch(self, m: int, n: int, k: int) -> Launch:
        sizes = (Size(m), Size(n), Size(k))
        if self.file == "matmul_mma_sync":
            return Launch("matmul", _grid(m, n, 128), (128, 1, 1), (0, 1, 2, *sizes), shared=3 * 32768)

        def tensor(buffer: int, rows: int, columns: int, box: int) -> Map:
            return Map(buffer, "bf16", (columns, rows), (2, 2 * columns), (64, box), 128)

        maps = (tensor(0, m, k, 128), tensor(1, n, k, 256), tensor(2, m, n, 64))
        blocks = min(3, math.prod(_grid(m, n, 256)))  # fewer than tiles, so that blocks take several
        return Launch("matmul", (blocks, 1, 1), (384, 1, 1), (*maps, *sizes), shared=3 * 49152 + 2 * 32768 + 48)

    def trial(self, m: int, n: int, k: int, seed: int) -> Trial:
        """Inputs whose sums are exact in f32, so that only the last rounding shows."""
        rng = np.random.default_rng(seed)
        a, b = (np.asarray(rng.integers(-16, 17, s) / 8, np.float32) for s in ((m, k), (n, k)))
        wanted = round_bf16((a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32))
        inputs = (("a", to_stored(a, bf16)), ("b", to_stored(b, bf16)))
        return Trial(self.text(), (), self.launch(m, n, k), inputs, (("c", bf16, wanted),))

    def text(self) -> str:
        return (KERNELS / f"{self.file}.cu").read_text(encoding="utf-8")


MMA_SYNC = Kernel("matmul_mma_sync", ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"), ("HMMA", "LDSM", "LDGSTS"),
                  ("LDL", "STL"))  # fmt: skip
WGMMA = Kernel("matmul_wgmma", ("sm_90a",), ("HGMMA", "UTMALDG", "UTMASTG", "STSM", "USETMAXREG"),
               ("HMMA", "LDL", "STL"))  # fmt: skip
FILES = {k.file: k for k in (MMA_SYNC, WGMMA)}


def _grid(m: int, n: int, width: int) -> Extent:
    return -(-n // width), -(-m // 128), 1


def run(kernel: Kernel, shape: Shape, check: bool) -> Array:
    seed = fresh_seed()
    print(f"seed {seed}")
    trial = kernel.trial(*shape, seed)
    outputs = poisoned(trial)
    path = emulator.build(trial.text, (HEADERS,), check)
    memory = [*(a for _, a in trial.inputs), *outputs]
    outcome = emulator.run(path, plan(trial), memory, check, seed=seed % 1000)
    assert outcome.complete and not outcome.reports, outcome.reports
    judge(trial, outputs)
    return outputs[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("file", FILES)
def test_the_product_is_exact(file: str, shape: Shape) -> None:
    run(FILES[file], shape, check=False)


@pytest.mark.parametrize("file", FILES)
def test_the_check_finds_nothing(file: str) -> None:
    run(FILES[file], SHAPES[1], check=True)


@pytest.mark.parametrize(("file", "architecture"), [(k.file, x) for k in FILES.values() for x in k.architectures])
def test_machine_code(file: str, architecture: str) -> None:
    if cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None:
        pytest.skip("no CUDA compiler: no NVRTC, no nvcc")
    kernel = FILES[file]
    made = cubin.build_cubin(kernel.text(), architecture, include=(HEADERS,))
    # Without a disassembler only ptxas' report is judged.
    contract = (
        resources.Contract(kernel.needs, kernel.forbids, wide=1.0) if sass.disassembler() else resources.Contract()
    )
    assert not resources.inspect(made, {"matmul": contract}).complaints


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 1032, 1048)], ids=str)
@pytest.mark.parametrize("file", FILES)
def test_the_product_is_exact_on_a_gpu(file: str, shape: Shape) -> None:
    if why := device.unavailable_reason():
        pytest.skip(why)
    kernel, seed = FILES[file], fresh_seed()
    architecture = device.architecture(arrays.current().capability, kernel.architectures)
    if architecture is None:
        pytest.skip(f"{arrays.current().name} cannot run it")
    trial = kernel.trial(*shape, seed)
    made = cubin.build_cubin(trial.text, architecture, include=(HEADERS,))
    memory = arrays.run(made, plan(trial), [*(a for _, a in trial.inputs), *poisoned(trial)])
    judge(trial, memory[len(trial.inputs) :])
