"""Machine code of loads behind a guard: none waits for the one before it."""

from pathlib import Path

import pytest
import torch

import compiler
from compiler.execution.gpu_programs import HEADERS
from compiler.runtime import cubin, sass, sass_code

needs_tools = pytest.mark.skipif(
    sass.disassembler() is None or (cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None),
    reason="no CUDA compiler or no disassembler on this machine",
)


@needs_tools
def test_what_is_added_to_a_product_is_loaded_at_once(tmp_path: Path) -> None:
    """NVCC 13.0 copies what a load has brought to where the next may bring nothing, unless it brings zeros there."""
    x, w = torch.randn(256, 1000, dtype=torch.bfloat16), torch.randn(256, 768, dtype=torch.bfloat16)
    c = torch.randn(1000, 768, dtype=torch.float16)  # no tile of the result, which is f32, can start as its block
    captured = compiler.capture(lambda x, w, c: x.t() @ w + c, [x, w, c])
    text = compiler.lower(captured.program, compiler.target("sm_90a")).show("cuda")
    assert "c_ahead" in text
    made = cubin.build_cubin(text, "sm_90a", include=(HEADERS,), cache=tmp_path)
    (body,) = sass.bodies(sass.disassemble(made.path) or "").values()
    code = sass_code.parse(body).instructions
    loads = [n for n, one in enumerate(code) if one.opcode.startswith("LDG")]
    assert len(loads) >= 8
    brought = 0
    for one in code[loads[0] : loads[-1] + 1]:
        read, written = sass_code.accessed_registers(one)
        assert not read & brought, one
        brought = brought | written if one.opcode.startswith("LDG") else brought & ~written
