"""Long CUDA texts are compiled in parts, side by side: they have together the kernels that the text has."""

import itertools
import re
from pathlib import Path

import pytest
import torch

from compiler import capture, lower, target
from compiler.execution import gpu_programs
from compiler.render import cuda
from compiler.runtime import cubin, gpu
from compiler.tests.fake_gpu import FakeDriver

DEFINED = re.compile(r'^extern "C" __global__[^(]*\([^)]*\) (\w+)\(', re.MULTILINE)


def text() -> str:
    """Matmuls of several sizes, and what is between them."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.softmax(x @ w, -1)
        return x

    sizes = (64, 96, 128, 160)
    weights = [torch.randn(a, b) for a, b in itertools.pairwise(sizes)]
    return str(lower(capture(function, [torch.randn(32, 64), *weights]).program, target("sm_90a")).stages["cuda"])


def test_every_kernel_is_in_one_part_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = text()
    monkeypatch.setattr(cuda, "PART", len(whole))
    assert cuda.parts(whole) == [whole]
    monkeypatch.setattr(cuda, "PART", 2000)
    made = cuda.parts(whole)
    assert len(made) > 2 and all(DEFINED.findall(part) for part in made)
    assert [name for part in made for name in DEFINED.findall(part)] == DEFINED.findall(whole)
    head = "".join(f"{line}\n" for line in whole.splitlines() if line.startswith("#include"))
    assert all(part.startswith(f"{head}\n") for part in made)
    assert "".join(part.removeprefix(head) for part in made) == whole[whole.index(head) + len(head) :]


@pytest.mark.skipif(cubin.nvrtc_compiler() is None, reason="NVRTC is not installed")
def test_kernels_are_found_in_the_code_of_their_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = text()
    monkeypatch.setattr(cuda, "PART", 2000)
    parts = cubin.build_cubins(cuda.parts(whole), "sm_90a", include=(gpu_programs.HEADERS,), cache=tmp_path)
    asked: list[tuple[int, str]] = []

    class Driver(FakeDriver):
        def load(self, image: bytes) -> int:
            super().load(image)
            return len(self.asked("load"))

        def function(self, module: int, name: str) -> int:
            asked.append((module, name))
            return 1

    module = gpu.Module(Driver({}), *(x.image for x in parts))
    for name in DEFINED.findall(whole):
        module.function(name)
    assert asked == [(n, name) for n, x in enumerate(cuda.parts(whole), 1) for name in DEFINED.findall(x)]
