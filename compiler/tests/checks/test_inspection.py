"""What kernels take of a GPU: figures by kernel of programs compiled together, contracts from what the code calls."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.checks import inspection
from compiler.execution.gpu_programs import HEADERS
from compiler.ir.kernel import Function
from compiler.runtime import cubin, sass

pytestmark = pytest.mark.skipif(
    cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None, reason="no CUDA compiler on this machine"
)


def lowered(function: Any, *inputs: torch.Tensor, target: str = "sm_90a") -> compiler.Lowering:
    return compiler.lower(compiler.capture(function, list(inputs)).program, compiler.target(target))


def test_kernels_of_many_programs_come_back_in_order(tmp_path: Path) -> None:
    programs = [
        lowered(lambda x: F.softmax(x, -1), torch.randn(8, 4096)),
        lowered(lambda x: x + 1, torch.randn(64)),
        lowered(lambda x: x + 1, torch.randn(64), target="sm_80"),
        lowered(lambda x: F.softmax(x, -1).cumsum(0), torch.randn(5, 33)),
        lowered(lambda x: x + 1, torch.randn(64)),
    ]
    found = inspection.inspect(programs, tmp_path)
    add = ["add_64_f32"]
    names = [["softmax_8x4096_f32"], add, add, ["softmax_5x33_f32", "cumsum_5x33_f32"], add]
    assert [[x.name for x in some] for some in found] == names
    assert [some[0].arch for some in found] == ["sm_90a", "sm_90a", "sm_80", "sm_90a", "sm_90a"]
    assert all(x.registers > 4 and not (x.stack or x.spilled or x.complaints) for some in found for x in some)
    assert found[0][0].shared > 0 and found[1][0].shared == 0 and found[1] == found[4]
    assert all(bool(x.opcodes) == (sass.disassembler() is not None) for some in found for x in some)


def test_a_text_that_is_refused_does_not_spoil_its_neighbours(tmp_path: Path) -> None:
    good, bad = lowered(lambda x: x * 2, torch.randn(8)), lowered(lambda x: x * 3, torch.randn(8))
    spoiled = compiler.Lowering({**bad.stages, "cuda": bad.stages["cuda"].replace("* 3.0f", "* three")}, bad.target, {})
    (fine,), (broken,) = inspection.inspect([good, spoiled], tmp_path)
    assert fine.complaints == () and any("three" in text for text in broken.complaints)


@pytest.mark.skipif(sass.disassembler() is None, reason="no disassembler on this machine")
def test_accesses_that_are_written_wide_must_be_so(tmp_path: Path) -> None:
    wide = lowered(lambda x: x * 2, torch.randn(1 << 20))
    narrow = re.sub(r"(mlc_load\w*)<\d+>", r"\1<1>", wide.stages["cuda"])
    assert narrow != wide.stages["cuda"]
    (spoiled,) = inspection.inspect([compiler.Lowering({**wide.stages, "cuda": narrow}, wide.target, {})], tmp_path)[0]
    assert any("16 bytes wide" in text for text in spoiled.complaints)
    assert inspection.inspect([wide], tmp_path)[0][0].complaints == ()


@pytest.mark.skipif(sass.disassembler() is None, reason="no disassembler on this machine")
def test_a_family_is_held_to_what_it_must_show(tmp_path: Path) -> None:
    program = lowered(lambda x: x * 2, torch.randn(1 << 20))
    (fine,), (wrong,) = inspection.inspect(
        [program, program], tmp_path, [("pointwise", "f32"), ("contraction", "bf16")]
    )
    assert fine.complaints == () and wrong.complaints == ("contraction of bf16: has no HGMMA",)


def only(lowering: compiler.Lowering) -> Function:
    function: Function
    (function,) = lowering.stages["kernel"].functions
    return function


def test_contracts_follow_from_what_is_called() -> None:
    wide = lowered(lambda x: x * 2, torch.randn(1 << 20))
    odd = lowered(lambda x: x * 2, torch.randn(1 << 20 | 1))
    sine = lowered(torch.sin, torch.randn(4096))
    divided = lowered(torch.remainder, *(torch.ones(4096, dtype=torch.int32) for _ in range(2)))
    assert inspection.contract(only(wide), wide.target).wide == 1.0
    assert inspection.contract(only(odd), odd.target).wide == 0.0
    assert inspection.contract(only(divided), divided.target).wide == 0.0  # what divides by zero says so, by a store
    assert inspection.contract(only(sine), sine.target).stack and not inspection.contract(only(odd), odd.target).stack
    assert inspection.contract(only(sine), sine.target).wide == 0.0  # the digits of 2/pi are loaded one by one
    a, b = torch.randn(2, 512, 512, dtype=torch.bfloat16)
    product = lowered(torch.matmul, a, b, target="sm_80")
    assert "HMMA" in inspection.contract(only(product), product.target).needs


@pytest.mark.skipif(sass.disassembler() is None, reason="no disassembler on this machine")
@pytest.mark.parametrize(
    "negated",
    [lambda x: -x, lambda x: 0 - x, lambda x: x * -1, lambda x: ~x + 1, lambda x: x.div(-1, rounding_mode="trunc")],
    ids=["neg", "sub", "mul", "not", "div"],
)
def test_extremes_of_negated_integers(tmp_path: Path, negated: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """ptxas forgets that the second operand of VIMNMX3 is to be negated: none is that it could see so."""
    program = lowered(lambda x: negated(x).amin(0), torch.ones(8, 3000, dtype=torch.int32))
    made = cubin.build_cubin(program.stages["cuda"], "sm_90a", include=(HEADERS,), cache=tmp_path)
    text = sass.disassemble(made.path)
    assert text is not None and "MNMX" in text
    assert not re.search(r"(IMAD\.MOV|IADD3)[^;]*-R\d+", text)


@pytest.mark.skipif(sass.disassembler() is None, reason="no disassembler on this machine")
@pytest.mark.parametrize(
    "absolute",
    [
        torch.abs,
        lambda x: torch.where(x < 0, 0 - x, x),
        lambda x: torch.where(x < 0, x * -1, x),
        lambda x: torch.where(x < 0, x.div(-1, rounding_mode="trunc"), x),
    ],
    ids=["abs", "sub", "mul", "div"],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_absolute_values_may_be_negative(
    tmp_path: Path, absolute: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    """That of the least integer is: a floor division by 7 looks at the remainder, x - 7 * quotient, to round down."""
    program = lowered(lambda x: absolute(x) // 7, torch.ones(3000, dtype=dtype))
    made = cubin.build_cubin(program.stages["cuda"], "sm_90a", include=(HEADERS,), cache=tmp_path)
    text = sass.disassemble(made.path)
    assert text is not None and re.search(r"IMAD[^;]*-?0x7,", text)
