"""Tile IR written by hand for GPUs: it verifies, its target has what it asks for, and it computes what torch does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compiler.interpret import tile as interpret
from compiler.ir import tile, tile_text
from compiler.ir.statement import Program
from compiler.targets import legal, nvidia
from compiler.tests.meaning import fresh_seed, random_arrays

FOLDER = Path(__file__).parents[1] / "cases" / "tile"
TARGETS = {t.name: t for t in (nvidia.SM_80, nvidia.SM_90A)}


def linear(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.relu(a @ b.T + bias)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


WANTED: dict[str, Callable[..., torch.Tensor]] = {"linear": linear, "softmax": softmax, "attention": attention}
PROGRAMS = sorted(p.name for p in FOLDER.glob("*.tile"))


def read(name: str) -> tuple[str, Program]:
    """The target named in the head of a file, and its program."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    target = next(line for line in text.splitlines() if line.startswith("# target:"))
    return target.removeprefix("# target:").strip(), tile_text.parse(text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    target, program = read(name)
    tile.verify(program)
    assert tile_text.parse(tile_text.show(program)) is program
    legal.verify(program, TARGETS[target])
    seed = fresh_seed()
    arrays = random_arrays(program.inputs, seed)
    (made,) = interpret.run(program, arrays)
    wanted = WANTED[program.name](*(torch.from_numpy(a).double() for a in arrays)).numpy()
    rounding = 2.0**-8 if program.outputs[0].dtype.bits == 16 else 2.0**-20
    size = np.abs(wanted).max()
    np.testing.assert_allclose(made, wanted, rtol=2 * rounding, atol=2 * rounding * size, err_msg=f"seed {seed}")


REFUSED = {
    'wgmma.m64n128k16.bf16"': ('wgmma.m64n136k16.bf16"', "does not divide tiles of 128 x 128 x 64"),
    "depth=4": ("depth=8", "take 294912 bytes, a block has 232448"),
    "bf16[128, 64], swizzle=128": ("bf16[128, 64], swizzle=48", "knows no swizzle of 48 bytes"),
    "copy(tb[0: +128, 0: +64], b[bn * 128: +128, k * 64: +64]": (
        "copy(tb[0: +128, 0: +32], b[bn * 128: +128, k * 64: +32]",
        "rows of 64 bytes are no whole panels of 128, by which tma would swizzle them",
    ),
    "acc = registers": ("acc = shared", "takes acc as f32 in registers, but acc is f32 in shared"),
    "copy(ta[0: +128, 0: +64], a[bm * 128: +128, k * 64: +64]": (
        "copy(ta[0: +128, 0: +64], a[bm * 128: +128, k * 60: +64]",
        "k * 60 along the last axis of a need not begin one",
    ),
    "a: bf16[200, 160]": ("a: bf16[200, 163]", "the axes of a are [326, 2] bytes apart"),
}


@pytest.mark.parametrize("old", REFUSED)
def test_what_a_target_cannot_do_is_refused_with_the_reason(old: str) -> None:
    new, reason = REFUSED[old]
    text = (FOLDER / "matmul_tma_wgmma.tile").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(legal.IllegalProgram) as refusal:
        legal.verify(tile_text.parse(text.replace(old, new)), nvidia.SM_90A)
    assert reason in str(refusal.value)


def test_an_older_target_has_neither_the_instruction_nor_the_copy() -> None:
    _, program = read("matmul_tma_wgmma.tile")
    with pytest.raises(legal.IllegalProgram, match="no tma copies from global to shared memory"):
        legal.verify(program, nvidia.SM_80)
    with pytest.raises(legal.IllegalProgram, match="no tensor instruction wgmma"):
        legal.verify(program, nvidia.target("sm_90", cores=132, l2=0))
