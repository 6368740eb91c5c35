"""Kernels are called after what they compute, the same on every target and in every text, each name once."""

import re

import pytest

from compiler.execution.expression import capture
from compiler.ir.stages import IRS
from compiler.ir.tensor import Program
from compiler.ir.tensor_text import parse
from compiler.passes.tensor.fuse import fuse
from compiler.pipeline import Lowering, lower
from compiler.render.c import CPP_KEYWORDS
from compiler.targets.cpu import AVX2
from compiler.targets.nvidia import SM_90A
from compiler.targets.target import Target

TARGETS = (AVX2, SM_90A)

# What a program's kernels are called on both targets.
NAMES = {
    "F.gelu(nn.Linear(64, 96)(torch.randn(32, 64)))": ["linear_gelu_32x96x64_f32"],
    "torch.addmm(torch.randn(96), torch.randn(32, 64), torch.randn(64, 96))": ["linear_32x96x64_f32"],
    "torch.relu(torch.randn(3, 32, 64, dtype=torch.bfloat16) @ torch.randn(3, 64, 96, dtype=torch.bfloat16))": [
        "matmul_relu_3x32x96x64_bf16"
    ],
    "F.rms_norm(torch.randn(4, 32, 2048), (2048,))": ["rms_norm_4x32x2048_f32"],
    "torch.softmax(torch.randn(64, 100), -1)": ["softmax_64x100_f32"],
    "(torch.randn(64, 3000) ** 2).sum(1)": ["pow_sum_64x3000_f32"],
    "F.scaled_dot_product_attention(*[torch.randn(2, 8, 128, 64)] * 3)": ["attention_2x8x128x64x128_f32"],
    "F.relu(nn.BatchNorm2d(16)(nn.Conv2d(1, 16, 3)(torch.randn(2, 1, 32, 32))))": [
        "conv2d_batch_norm_relu_2x16x30x30_f32"
    ],
    "torch.ops.aten.native_layer_norm_backward(torch.randn(32, 64), torch.randn(32, 64), [64], torch.randn(32, 1),"
    " torch.randn(32, 1), torch.randn(64), torch.randn(64), [True, True, True])": [
        "layer_norm_backward_32x64_f32", "layer_norm_backward_sum_64x32_f32", "layer_norm_backward_sum_64x32_f32_1",
    ],
    "(lambda x: nn.Linear(256, 128)(F.silu(nn.Linear(128, 256)(x)) * nn.Linear(128, 256)(x)))"
    "(F.rms_norm(torch.randn(32, 128), (128,)))": [
        "rms_norm_32x128_f32", "linear_silu_32x256x128_f32", "linear_mul_32x256x128_f32", "linear_32x128x256_f32",
    ],
    "torch.zeros(100).index_add(0, torch.randint(0, 100, (50,)), torch.randn(50))": [
        "index_add_100x50_f32_base", "index_add_100x50_f32",
    ],
    "torch.cumsum(F.embedding(torch.randint(0, 100, (8, 16)), torch.randn(100, 32)), 1)": ["cumsum_8x16x32_f32"],
    "torch.randn(64, 32, 16).permute(2, 0, 1).contiguous()": ["permute_16x64x32_f32"],
    "torch.arange(10) + torch.randint(0, 5, (10,))": ["add_10_i64"],
    "torch.randn(33).to(torch.float16)": ["cast_33_f16"],
    "nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(64, 64), nn.ReLU())])(torch.randn(32, 64))": [
        "linear_relu_32x64x64_f32", "linear_relu_32x64x64_f32_1", "linear_relu_32x64x64_f32_2",
    ],
}  # fmt: skip


def lowered(code: str, target: Target) -> Lowering:
    return lower(capture(code, 1)[2].program, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("code", NAMES)
def test_a_kernel_is_called_after_what_it_computes(code: str, target: Target) -> None:
    made = lowered(code, target)
    assert [k.name for k in made.stages["loop"].kernels] == NAMES[code]
    assert [k.name for k in made.stages["tile"].kernels] == NAMES[code]
    assert list(made.schedules) == NAMES[code]
    assert [f.name for f in made.stages["kernel"].functions] == NAMES[code]
    for stage in ("torch", "tensor", "loop", "tile", "kernel"):
        assert IRS[stage].parse(made.show(stage)) is made.stages[stage]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_equal_layers_share_one_function_of_the_text(target: Target) -> None:
    made = lowered(list(NAMES)[-1], target)
    text = re.sub(r"//[^\n]*", "", made.stages["cpp" if target.kind == "cpu" else "cuda"])
    assert set(re.findall(r"linear_relu\w*", text)) == {"linear_relu_32x64x64_f32"}


def test_words_extents_and_numbers_leave_a_name_short_enough_for_an_identifier() -> None:
    size = "1000000000000 // 1000000000000 * 3"
    many = "torch.tanh(torch.sigmoid(torch.exp(torch.sin(torch.cos(torch.randn(2, 3, 2, 3, 2, 3) * 2 + 1) - 3))) / 2)"
    long = f"F.binary_cross_entropy_with_logits(torch.randn({size}), torch.rand(3), reduction='none').logsumexp(0)"
    for code in (many, f"{many}.erf().log_softmax(-1)", long):
        for kernel in lowered(code, AVX2).stages["loop"].kernels:
            assert re.fullmatch(r"[a-z]\w{1,63}", kernel.name, re.ASCII), kernel.name
            assert kernel.name not in CPP_KEYWORDS


SHARED = """
def f(x: f32[8], y: f32[8]):
    with kernel("a", 'aten.mul.Tensor'):
        a[i: 8]: f32 = x[i] * x[i]
    with kernel("b", 'aten.mul.Tensor'):
        b[i: 8]: f32 = y[i] * 2.0
    with kernel("c"):
        c[i: 8]: f32 = y[7 - i] + 2.0
    result(a, f32[8])
    result(b, f32[8])
    result(c, f32[8])
"""


def fused(program: Program) -> list[str]:
    return [g.name for g in fuse(program).groups]


def test_what_would_be_called_the_same_is_numbered_and_what_says_nothing_keeps_the_name_of_its_result() -> None:
    program = parse(SHARED)
    assert fused(program) == ["mul_8_f32", "mul_8_f32_1", "c"]
    assert fused(fuse(program)) == fused(program)
