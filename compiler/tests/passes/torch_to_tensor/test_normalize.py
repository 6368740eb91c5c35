"""Norms over the last axes: of sizes that PyTorch accepts, also symbolic ones, and of no others."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import compiler
from compiler.ir.aten import Program
from compiler.ir.stages import IRS

INPUT_AND_PARAMETERS = """def f(x: f32[{shape}], w: f32[{weight}]):
    y: f32[{shape}] = aten.{norm}.default(x, [{normalized}], w{rest})
    return y
"""
REST = {"rms_norm": "", "layer_norm": ", w"}


def edited(norm: str, shape: list[int], normalized: list[int], weight: list[int]) -> Program:
    """The Torch text of a norm, which PyTorch has not seen."""
    shape_text, normalized_text, weight_text = (", ".join(map(str, sizes)) for sizes in (shape, normalized, weight))
    text = INPUT_AND_PARAMETERS.format(
        shape=shape_text, norm=norm, normalized=normalized_text, weight=weight_text, rest=REST[norm]
    )
    program: Program = IRS["torch"].parse(text)
    return program


def lower(program: Program) -> None:
    compiler.lower(program, compiler.target("cpu"), until="tensor")


@pytest.mark.parametrize("norm", REST)
def test_sizes_that_torch_refuses_are_refused_by_name(norm: str, seed: int) -> None:
    rng = random.Random(seed)
    rows, n = rng.randrange(2, 9), rng.randrange(2, 99)
    lower(edited(norm, [rows, n], [n], [n]))
    lower(edited(norm, [rows, n], [rows, n], [rows, n]))
    for normalized in ([n - 1], [n + 1], [1], [n, rows + n], [2, rows, n]):
        with pytest.raises(compiler.Unsupported) as refused:
            lower(edited(norm, [rows, n], normalized, normalized))
        assert f"{normalized}, which does not end the shape of f32[{rows}, {n}]" in str(refused.value), seed
    with pytest.raises(compiler.Unsupported) as refused:
        lower(edited(norm, [rows, n], [n], [n - 1]))
    assert f"normalized_shape is [{n}], and a parameter is f32[{n - 1}]" in str(refused.value), seed


def test_symbolic_sizes_are_compared_too() -> None:
    def norms(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.rms_norm(x, x.shape[1:], w), F.layer_norm(x.flatten(1), (x.shape[1] * x.shape[2],))

    n = Dim("n", min=2, max=1000)
    dynamic = {"x": {1: n}, "w": {0: n}}
    captured = compiler.capture(norms, [torch.randn(3, 5, 7), torch.randn(5, 7)], dynamic_shapes=dynamic)
    lower(captured.program)
    text = IRS["torch"].show(captured.program)
    with pytest.raises(compiler.Unsupported, match="which does not end the shape"):
        lower(IRS["torch"].parse(text.replace("(x, [s0, 7]", "(x, [s0 + 1, 7]")))
    lower(IRS["torch"].parse(text.replace("(x, [s0, 7]", "(x, [-6917529027103051520, 7]")))  # as PyTorch 2.11 has it
